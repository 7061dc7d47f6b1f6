"""Counts of a correlated topic model have the moments that were asked for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from nmfscale.datasets import simulate_correlated_topics

COVARIANCE = np.array([[3.0, 1.5, -1.0], [1.5, 2.0, -0.5], [-1.0, -0.5, 1.0]])
MEAN = np.array([0.5, 0.0, -1.0])


def test_moments():
    counts, truth = simulate_correlated_topics(
        20_000, 30, COVARIANCE, mean=MEAN, size=40.0, random_state=0
    )
    assert_array_equal(counts.sum(axis=1), truth.sizes)
    assert_allclose(truth.L.sum(axis=1), 1)
    assert_allclose(truth.F.sum(axis=0), 1)
    logs = np.log10(truth.sizes - 0.5)  # sizes are rounded up
    assert_allclose([np.median(logs), logs.std()], [np.log10(40), 0.2], atol=0.01)
    # Proportions determine eta up to the sum of each row: ratios to the last topic are normal.
    ratios = np.log(truth.L[:, :2] / truth.L[:, 2:])
    C = np.array([[1.0, 0, -1], [0, 1, -1]])
    assert_allclose(ratios.mean(axis=0), C @ MEAN, atol=0.05)
    assert_allclose(np.cov(ratios.T), C @ COVARIANCE @ C.T, rtol=0.05)
    standard = (ratios - C @ MEAN) / np.sqrt(np.diag(C @ COVARIANCE @ C.T))
    assert_allclose([(np.abs(standard) < 1).mean(), (standard**3).mean()], [0.683, 0], atol=0.05)
    p = truth.L @ truth.F.T
    expected = truth.sizes[:, None] * p
    squares = (counts.toarray() - expected) ** 2 / (expected * (1 - p))
    assert_allclose(squares[expected > 0.01].mean(), 1, rtol=0.03)


def test_another_covariance_has_the_same_totals_and_frequencies():
    covariance = 13 * np.eye(6) - 2
    A, truth = simulate_correlated_topics(20, 40, covariance, random_state=3)
    covariance[4, 5] = covariance[5, 4] = 8
    B, other = simulate_correlated_topics(20, 40, covariance, random_state=3)
    assert_array_equal(truth.sizes, other.sizes)
    assert_array_equal(truth.F, other.F)
    assert np.abs(truth.L - other.L).max() > 0.1
    assert (A != B).nnz > 0
    again, _ = simulate_correlated_topics(
        20, 40, covariance, frequencies=7 * other.F, random_state=3
    )
    assert (B != again).nnz == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_samples": 0}, "n_samples=0 must be an integer, at least 1"),
        ({"covariance": np.ones(3)}, r"covariance has shape \(3,\); it must be a square"),
        ({"covariance": [[1.0, 0.2], [0.1, 1.0]]}, "covariance is not symmetric"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance has the eigenvalue -1; it must"),
        ({"covariance": [[np.nan]]}, "covariance contains NaN or Inf"),
        ({"mean": [0.0, 1.0, 2.0]}, r"mean has shape \(3,\); it needs \(\) or \(2,\)"),
        ({"size": -1.0}, "size=-1.0 must be positive"),
        ({"size_spread": -1.0}, "size_spread=-1.0 must be at least 0"),
        ({"size": 1e12}, "int32 holds up to"),
        ({"frequencies": np.ones((3, 2))}, r"frequencies has shape \(3, 2\); it needs \(4, 2\)"),
        ({"frequencies": [[1, 0]] * 4}, "Topic 1 of frequencies is 0 in every feature"),
    ],
)
def test_what_cannot_be_simulated(options, match):
    given = {"n_samples": 5, "n_features": 4, "covariance": np.eye(2)} | options
    with pytest.raises(ValueError, match=match):
        simulate_correlated_topics(**given)
