"""Counts of a noisy topic model have the moments that were asked for."""

import pytest
from numpy.testing import assert_allclose

from nmfscale.datasets import simulate_noisy_topics


def test_moments():
    options = {"noisy_share": 0.3, "noisy_variance": 1.5, "variance": 0.1, "random_state": 0}
    counts, truth = simulate_noisy_topics(40, 4000, 3, size=5e4, **options)
    assert_allclose(truth.L.sum(axis=1), 5e4)
    assert_allclose([truth.mu.sum(), truth.noisy.mean()], [1, 0.3], rtol=0.05)
    assert_allclose([truth.u[truth.noisy].mean(), truth.u[~truth.noisy].mean()], 1, rtol=0.05)
    variances = truth.u[truth.noisy].var(), truth.u[~truth.noisy].var()
    assert_allclose(variances, [1.5, 0.1], rtol=0.1)
    expected = truth.L @ (truth.mu[:, None] * truth.u).T
    assert_allclose(((counts.toarray() - expected) ** 2 / expected).mean(), 1, rtol=0.03)


def test_other_pairs_have_no_noise_and_seeds_repeat():
    one, truth = simulate_noisy_topics(20, 30, 2, random_state=3)
    other, _ = simulate_noisy_topics(20, 30, 2, random_state=3)
    assert (one != other).nnz == 0
    assert (truth.u[~truth.noisy] == 1).all() and (truth.u[truth.noisy] != 1).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"noisy_share": 1.5}, "noisy_share=1.5 must be between 0 and 1"),
        ({"variance": -1.0}, "variance=-1.0 must be at least 0"),
        ({"noisy_variance": 0}, "noisy_variance=0 must be positive"),
        ({"n_features": 0}, "n_features=0 must be an integer, at least 1"),
    ],
)
def test_what_cannot_be_simulated(options, match):
    with pytest.raises(ValueError, match=match):
        simulate_noisy_topics(**{"n_samples": 5, "n_features": 4, "n_components": 2} | options)
