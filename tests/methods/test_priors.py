"""Posteriors of a Poisson NMF with Gamma and a topic model with Dirichlet priors: one maximum."""

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import dirichlet, gamma

import nmfscale

SEEDS = pytest.mark.parametrize("seed", range(3))


def problem(seed, n=20, m=12, K=3):
    """Counts, factors, shapes (m, K) of a prior and its rates (K,)."""
    rng = np.random.default_rng(seed)
    L, F = rng.gamma(0.5, size=(n, K)) + 1e-3, rng.gamma(0.5, size=(m, K)) + 1e-3
    X = rng.poisson(20 * rng.permutation(L) @ F.T).astype(float)
    X[:, 0] += 1
    return X, L, F, rng.uniform(1.05, 3, (m, K)), rng.uniform(0.2, 4, K)


def of_sizes(X, s, u, alpha, rate):
    """Log density of what a Poisson NMF knows besides a topic model: totals and scales."""
    of_scales = gamma.logpdf(u, alpha.sum(axis=0), scale=1 / rate) - (len(alpha) - 1) * np.log(u)
    return oracle.poisson_logpmf(X.sum(axis=1), s).sum() + of_scales.sum()


@SEEDS
def test_posteriors_are_likelihoods_times_densities(seed):
    X, L, F, alpha, rate = problem(seed)
    poisson = nmfscale.likelihood.logposterior_poisson(
        X, L, F, prior_factors=(alpha, rate), prior_loadings=(1.5, 0.3)
    )
    expected = oracle.loglik_poisson(X, L, F).sum() + gamma.logpdf(F, alpha, scale=1 / rate).sum()
    assert_allclose(poisson, expected + gamma.logpdf(L, 1.5, scale=1 / 0.3).sum(), rtol=1e-12)
    multinomial = nmfscale.likelihood.logposterior_multinomial(X, L, F, prior_factors=alpha)
    expected = oracle.loglik_multinomial(X, L, F).sum()
    expected += sum(dirichlet.logpdf(F[:, k] / F[:, k].sum(), alpha[:, k]) for k in range(3))
    assert_allclose(multinomial, expected, rtol=1e-12)


@SEEDS
def test_a_posterior_is_that_of_topics_and_that_of_sizes(seed):
    """Anywhere, not only at a maximum: Lemma 1 of Carbonetto et al. with priors."""
    X, L, F, alpha, rate = problem(seed)
    P, W, s, u = oracle.poisson_to_multinomial(L, F)
    poisson = nmfscale.likelihood.logposterior_poisson(X, L, F, prior_factors=(alpha, rate))
    for factors in ((L, F), (P, W)):
        topics = nmfscale.likelihood.logposterior_multinomial(X, *factors, prior_factors=alpha)
        assert_allclose(poisson, topics + of_sizes(X, s, u, alpha, rate), rtol=1e-12)


@SEEDS
def test_without_priors_posteriors_are_likelihoods(seed):
    X, L, F, _, _ = problem(seed)
    for prior in (None, 1.0, np.ones(3)):
        found = nmfscale.likelihood.logposterior_poisson(X, L, F, prior_factors=prior)
        assert_allclose(found, nmfscale.likelihood.loglik_poisson(X, L, F).sum(), rtol=1e-13)


def test_a_zero_has_a_finite_density():
    X, L, F, alpha, _ = problem(0)
    F[3, 1] = L[2, 0] = 0
    for function in (
        nmfscale.likelihood.logposterior_poisson,
        nmfscale.likelihood.logposterior_multinomial,
    ):
        assert np.isfinite(function(X, L, F, prior_factors=alpha))


@pytest.mark.parametrize(("seed", "solver"), [(0, "auto"), (1, "scd"), (2, "auto")])
def test_map_of_a_poisson_nmf_is_that_of_the_topic_model(seed, solver):
    """Corollary 2: EM for the posterior of the topic model stays where it leads."""
    X, L, F, alpha, rate = problem(seed)
    model = nmfscale.PoissonNMF(
        3, solver=solver, prior_factors=(alpha, rate), tol=1e-9, gain_tol=0, max_iter=5000
    ).fit(X, loadings=L, components=F.T)
    P, W, s, u = nmfscale.likelihood.poisson_to_multinomial(model.loadings_, model.components_.T)
    assert_allclose(s, X.sum(axis=1), rtol=1e-6)
    assert_allclose(u, nmfscale.likelihood.gamma_to_dirichlet(alpha, rate)[1], rtol=1e-6)
    stepped = oracle.step_plsa(X, P, W, alpha)
    for found, expected in zip((P, W), stepped, strict=True):
        assert_allclose(found, expected, atol=1e-6)
    ascended = nmfscale.likelihood.logposterior_multinomial(X, *stepped, prior_factors=alpha)
    assert (
        ascended
        <= nmfscale.likelihood.logposterior_multinomial(X, P, W, prior_factors=alpha) + 1e-6
    )


@SEEDS
def test_map_of_a_topic_model_is_that_of_the_poisson_nmf(seed):
    """Corollary 2, conversely: no row, no column and no scale of the factors wants to move."""
    X, L, F, alpha, rate = problem(seed)
    P, W = oracle.poisson_to_multinomial(L, F)[:2]
    for _ in range(4000):
        P, W = oracle.step_plsa(X, P, W, alpha)
    shapes, scales = nmfscale.likelihood.gamma_to_dirichlet(alpha, rate)
    assert_array_equal(shapes, alpha)
    L, F = nmfscale.likelihood.multinomial_to_poisson(P, W, X.sum(axis=1), scales)
    of_L, of_F = oracle.kkt_residuals(X, L, F)
    assert_allclose(of_L, 0, atol=1e-6 * X.sum())
    assert_allclose(of_F + rate * F - (alpha - 1), 0, atol=1e-6 * X.sum())
    prior = {"prior_factors": (alpha, rate)}
    best = nmfscale.likelihood.logposterior_poisson(X, L, F, **prior)
    sizes = of_sizes(X, X.sum(axis=1), scales, alpha, rate)
    topics = nmfscale.likelihood.logposterior_multinomial(X, P, W, prior_factors=alpha)
    assert_allclose(best, topics + sizes, rtol=1e-12)
    for c in (0.99, 1.01):
        moved = [(L * c, F), (L, F * c), (L * [c, 1, 1], F / [c, 1, 1])]
        assert all(
            nmfscale.likelihood.logposterior_poisson(X, *pair, **prior) < best for pair in moved
        )


def test_priors_there_and_back():
    _, _, _, alpha, rate = problem(0)
    for given in (rate, 2.0):
        again = nmfscale.likelihood.dirichlet_to_gamma(
            *nmfscale.likelihood.gamma_to_dirichlet(alpha, given)
        )
        assert_array_equal(again[0], alpha)
        assert_allclose(again[1], np.broadcast_to(given, 3), rtol=1e-14)


@pytest.mark.parametrize(
    ("alpha", "rate", "message"),
    [
        ([[1.5, 0.5]], 1.0, "alpha: a number is 0.5"),
        ([[1.5, 1.0], [1.5, 1.0]], 1.0, "alpha: all of column 1 is 1"),
        ([1.5, 2.0], 1.0, r"alpha has shape \(2,\)"),
        ([[1.5, 2.0]], 0.0, "rate is 0.0; positive"),
        ([[1.5, 2.0]], [1.0], r"rate has shape \(1,\); it needs \(2,\)"),
        ([[1.5, 2.0]], [1.0, np.nan], r"rate\[1\] is nan"),
    ],
)
def test_what_is_no_prior_is_refused(alpha, rate, message):
    with pytest.raises(ValueError, match=message):
        nmfscale.likelihood.gamma_to_dirichlet(alpha, rate)


def test_posteriors_refuse_what_has_none():
    X, L, F, alpha, _ = problem(0)
    for function in (
        nmfscale.likelihood.logposterior_poisson,
        nmfscale.likelihood.logposterior_multinomial,
    ):
        with pytest.raises(ValueError, match=r"prior_factors: alpha has shape \(3, 12\)"):
            function(X, L, F, prior_factors=alpha.T)
    F[:, 1] = 0
    with pytest.raises(ValueError, match="F: column 1 is zero"):
        nmfscale.likelihood.logposterior_multinomial(X, L, F, prior_factors=alpha)
