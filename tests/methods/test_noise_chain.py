"""Steps of the Markov chain of the noisy topic model, compared with integrals."""

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import nbinom

import nmfscale
from nmfscale.methods.variational.mixture_noise import GRID
from nmfscale.methods.variational.noise_chain import NoiseChain

SHARES = np.array([0.7, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0])


def chain_of(X, K, seed=0):
    n, m = X.shape
    start = np.ones((n, K)), np.full(m, 1 / m), np.ones((m, K)), SHARES
    return NoiseChain(nmfscale.as_counts(X), *start, np.random.default_rng(seed), 1)


@pytest.mark.parametrize("n", [[30, 31, 90], [40, 12, 11], [0, 0, 3], [0, 0, 0]])
def test_means_and_noise_given_the_counts_of_topics(n):
    """Thousands of features with the same counts of topics, and the integral over the mean."""
    S = np.array([1000.0, 900.0, 1100.0])
    m, total = 1000, 3000
    X = np.zeros((3, m), int)
    X[0] = sum(n)
    chain = chain_of(X, 3)
    chain._rates[:] = rate = total / (sum(n) + 1.0)
    counts = np.tile(np.array(n, float), (m, 1))
    means, none = [], []
    for sweep in range(30):
        chain._draw_features(slice(0, m), counts, S)
        if sweep >= 10:
            means.append(chain.mu.mean())
            none.append(chain.no_noise.mean(axis=0))
    mu = np.geomspace(1e-6, 1, 4000)[:, None]
    each = np.array([
        share * nbinom.pmf(n, theta, theta / (theta + mu * S))
        for theta, share in zip(GRID, SHARES, strict=True)
    ])  # fmt: skip
    weight = each.sum(axis=0).prod(axis=1) * np.exp(-rate * mu[:, 0]) * mu[:, 0]
    weight /= weight.sum()
    expected = weight @ (each[0] / each.sum(axis=0))
    np.testing.assert_allclose(np.mean(none, axis=0), expected, atol=0.01)
    np.testing.assert_allclose(np.mean(means), weight @ mu[:, 0], rtol=0.03)


def test_the_prior_of_proportions_given_the_counts_of_topics():
    z = np.array([[9, 1], [8, 0], [0, 5], [3, 3], [10, 0]])
    chain = chain_of(np.array([[10], [8], [5], [6], [10]]), 2)
    chain._of_samples, found = z, []
    for step in range(2500):
        chain._move_a(adapt=step < 500)
        found.append(chain.a)
    a = np.meshgrid(*[np.linspace(0.005, 8, 400)] * 2, indexing="ij")
    log = -sum(a) + 5 * (gammaln(sum(a)) - gammaln(a[0]) - gammaln(a[1]))
    for row in z:
        log = log + gammaln(a[0] + row[0]) + gammaln(a[1] + row[1]) - gammaln(sum(a) + row.sum())
    weight = np.exp(log - log.max())
    expected = [(weight * each).sum() / weight.sum() for each in a]
    np.testing.assert_allclose(np.mean(found[500:], axis=0), expected, rtol=0.1)


def test_a_chain_that_starts_at_the_truth_stays_there():
    X, truth = nmfscale.datasets.simulate_noisy_topics(150, 60, 2, noisy_share=0.3, random_state=0)
    counts = nmfscale.as_counts(X)
    chain = NoiseChain(
        counts, truth.L, truth.mu, truth.u, SHARES, np.random.default_rng(0), 1
    )  # fmt: skip
    L, F = np.zeros(truth.L.shape), np.zeros(truth.u.shape)
    for _ in range(60):
        chain.sweep()
        L += chain.L / 60
        F += chain.mu[:, None] * chain.u / 60
    assert np.corrcoef(L.ravel(), truth.L.ravel())[0, 1] > 0.995
    # u is not determined: with two topics, either one may be the one without noise
    expected = truth.mu[:, None] * truth.u
    known = expected * truth.L.sum(axis=0) > 400
    assert known.sum() > 60
    np.testing.assert_allclose(F[known], expected[known], rtol=0.2)
    np.testing.assert_allclose(chain.L.sum(), X.sum(), rtol=0.1)
    assert abs(chain.mu.sum() - 1) < 1e-12 and abs(chain.shares.sum() - 1) < 1e-12
