"""Multinomial mixtures: EM as it is written, and as a Poisson regression in other parameters."""

import internals
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from nmfscale import PoissonNMF, TopicModel
from nmfscale.likelihood import (
    loglik_multinomial,
    mixture_proportions,
    multinomial_to_poisson,
    poisson_to_multinomial,
)

rng = np.random.default_rng(0)
F = rng.gamma(0.5, size=(40, 4))
W = F / F.sum(axis=0)
P = rng.dirichlet(np.full(4, 0.4), 50)
X = np.stack([rng.multinomial(200, P[i] @ W.T) for i in range(50)])
START = rng.dirichlet(np.ones(4), 50)


@pytest.mark.parametrize("n_iter", [1, 2, 7])
def test_steps_are_those_of_em_for_a_mixture(n_iter, monkeypatch):
    expected = np.stack([oracle.em_mixture(X[i], W, START[i], n_iter) for i in range(50)])
    found = mixture_proportions(sp.csr_matrix(X), W, START, n_iter=n_iter, n_threads=1)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert_array_equal(mixture_proportions(X, W, START, n_iter=n_iter, n_threads=2), found)
    internals.small_blocks(monkeypatch, 300)
    assert_array_equal(mixture_proportions(X, W, START, n_iter=n_iter), found)


@pytest.mark.parametrize("n_iter", [1, 3])
def test_steps_are_those_of_em_for_a_regression(n_iter):
    """Appendix A.3.5 of Carbonetto et al.: equations 33 and 34, and back with the total as size."""
    L = START * rng.uniform(1, 50, (50, 1))
    proportions, frequencies, sizes, scales = poisson_to_multinomial(L, F)
    assert_allclose(frequencies, W)
    poisson = oracle.loglik_poisson(X, L, F)
    topics = oracle.loglik_multinomial(X, proportions, W)
    assert_allclose(poisson, topics + oracle.poisson_logpmf(X.sum(axis=1), sizes), rtol=1e-12)
    moved = mixture_proportions(X, F, proportions, n_iter=n_iter)
    back, _ = multinomial_to_poisson(moved, W, X.sum(axis=1), scales)
    expected = [oracle.em(X[i], F, F.sum(axis=0), L[i], n_iter) for i in range(50)]
    assert_allclose(back, expected, rtol=1e-7, atol=1e-9 * back.max())


def test_steps_climb_to_the_maximum():
    best = mixture_proportions(X, W)
    reached = [loglik_multinomial(X, mixture_proportions(X, W, n_iter=n), W) for n in (1, 10, 1000)]
    assert (reached[0] <= reached[1] + 1e-9).all() and (reached[1] <= reached[2] + 1e-9).all()
    assert_allclose(reached[2], loglik_multinomial(X, best, W), atol=1e-3)
    model = PoissonNMF(4, max_iter=1, tol=0).fit(X, components=F.T, fixed_topics=[True] * 4)
    assert_allclose(best, poisson_to_multinomial(model.transform(X), F).proportions, atol=1e-7)


def test_an_empty_sample_has_equal_proportions():
    with pytest.warns(UserWarning, match="1 of 50 samples of X have no counts in features of the"):
        found = mixture_proportions(X * (np.arange(50) > 0)[:, None], W, n_iter=3)
    assert_allclose(found[0], 0.25)
    assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize("missing", ["restrict", "zero"])
def test_features_that_counts_lack_are_treated_as_by_transform(missing):
    """Shares of all counts, of which those of absent features were not measured, or are 0."""
    names, there = np.array([f"gene{j}" for j in range(40)]), np.arange(40) % 3 > 0
    topics = pd.DataFrame(W, index=names).iloc[::-1]
    model = TopicModel(4, max_iter=1, tol=0).fit(
        pd.DataFrame(X, columns=names), components=topics.T, fixed_topics=[True] * 4
    )
    few = pd.DataFrame(X[:, there], columns=names[there]).assign(other=7)
    with pytest.raises(ValueError, match="X lacks 14 of the 40 features of frequencies.*restrict"):
        mixture_proportions(few, topics)
    with pytest.warns(UserWarning, match="X lacks 14 of the 40 features that TopicModel was"):
        expected = model.transform(few, missing=missing)
    warning = rf"X lacks 14 .*\(missing='{missing}'\). X has 1 feature that frequencies does not"
    for n_iter in (None, 2000):
        with pytest.warns(UserWarning, match=warning):
            found = mixture_proportions(few, topics, n_iter=n_iter, missing=missing)
        assert_allclose(found, expected, atol=1e-3 if n_iter else 1e-6)
    absent = topics.assign(last=np.where(topics.index.isin(few), 0, 1))
    with pytest.warns(UserWarning, match="X lacks"):
        found = mixture_proportions(few, absent, n_iter=2, missing=missing)
    assert_allclose(found[:, 4], 0, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frequencies": W[:5]}, r"frequencies has shape \(5, 4\)"),
        ({"frequencies": W * [1, 1, 0, 1]}, "component 2 has none"),
        ({"start": START[:, :2]}, r"start has shape \(50, 2\)"),
        ({"start": -START}, r"start\[0, 0\] is -"),
        ({"start": START * (np.arange(50) != 7)[:, None]}, r"start\[7\] is all zero"),
        ({"missing": "drop"}, "missing='drop': 'error', 'restrict', 'zero' are the ways"),
        ({"n_iter": 0}, "n_iter == 0, must be >= 1"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mixture_proportions(X, **{"frequencies": W} | arguments)
