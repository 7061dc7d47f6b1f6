"""Gamma-Poisson: its bound, that it never falls, LDA beside it, the hierarchical model."""

import math

import numpy as np
import oracle_gamma_poisson as oracle
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from oracle_gamma_poisson import elbo_of, priors_of
from scipy import stats
from scipy.integrate import dblquad, quad
from scipy.special import gammaln
from small_fits import X

import nmfscale

FEW = np.array([[2, 1, 0], [0, 1, 2], [1, 0, 0]])
DEEP = {"hierarchical": True}


def fit(counts=X, n_components=3, **options):
    options = {"max_iter": 30, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return nmfscale.GammaPoisson(n_components, **options).fit(counts)


# The bound ------------------------------------------------------------------------------------


def test_bound_by_enumeration_and_quadrature():
    """For any q: E_q of log p - log q, the parts of counts enumerated, loadings by quadrature."""
    rng, shape, rate = np.random.default_rng(0), np.array([0.7, 1.4]), np.array([0.5, 2.0])
    counts, W = FEW[:1], rng.dirichlet(np.ones(3), size=2).T
    gamma, of_q = rng.gamma(3.0, size=(1, 2)) + 1, rng.gamma(2.0, size=(1, 2)) + 0.5
    phi, expected = rng.dirichlet([1.0, 1.0], size=(1, 3)), 0.0
    q = stats.gamma(gamma[0], scale=1 / of_q[0])
    prior = stats.gamma(shape, scale=1 / rate)

    def of_density(function):
        def integrand(h, k):
            at = np.full(2, h)
            return function(at)[k] * q.pdf(at)[k]

        return np.array([quad(integrand, 0, np.inf, k, epsabs=1e-10)[0] for k in range(2)])

    log_h, h = of_density(np.log), of_density(np.array)
    expected += np.sum(of_density(lambda h: prior.logpdf(h) - q.logpdf(h)))
    for j, x in enumerate(counts[0]):
        for first in range(x + 1):
            z = np.array([first, x - first])
            q_z = stats.multinomial(x, phi[0, j]) if x else None
            weight = q_z.pmf(z) if x else 1.0
            log_p = np.sum(z * (np.log(W[j]) + log_h) - W[j] * h - gammaln(z + 1))
            expected += weight * (log_p - (q_z.logpmf(z) if x else 0.0))
    found = oracle.elbo_plain(counts, gamma, W, shape, rate, of_q, phi)
    assert_allclose(found, expected, rtol=1e-8)
    assert expected < oracle.elbo_plain(counts, gamma, W, shape, rate, of_q)


def test_divergence_of_a_drawn_rate_by_quadrature():
    """E log p(theta | xi) under q of both."""
    q_theta, q_xi, shape = (1.7, 2.0), (3.0, 1.3), 0.6

    def log_density(x, a, b):
        return a * math.log(b) - math.lgamma(a) + (a - 1) * math.log(x) - b * x

    def integrand(x, y):
        log_q = log_density(x, *q_theta)
        return math.exp(log_q + log_density(y, *q_xi)) * (log_density(x, shape, y) - log_q)

    mean, log_mean = oracle.moments(*q_xi)
    found = oracle.minus_divergence(*q_theta, shape, mean, log_mean)
    assert_allclose(found, dblquad(integrand, 0, 20, 0, 20, epsabs=1e-7)[0], rtol=1e-5)


def test_one_component_is_negative_binomial():
    """The posterior is then Gamma: the bound is the evidence, negative binomial x multinomial."""
    model = fit(FEW, 1, shape_loadings=0.8, rate_loadings=0.4, max_iter=3)
    totals, W = FEW.sum(axis=1), model.components_[0]
    evidence = stats.nbinom(0.8, 0.4 / 1.4).logpmf(totals).sum()
    evidence += np.sum(stats.multinomial.logpmf(FEW, totals, W))
    assert_allclose(model.elbo_, evidence, rtol=1e-12)
    assert_allclose(model.score(FEW) * FEW.sum(), evidence, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bound_of_a_hierarchical_fit(dtype):
    model = fit(**DEEP, dtype=dtype, shape_rates=[1.3, 0.7], mean_rates=[2.0, 5.0])
    assert_allclose(model.elbo_, elbo_of(model, X), rtol=1e-5 if dtype == "float32" else 1e-11)
    assert_allclose(model.loadings_.sum(axis=0), model.loadings_totals_, rtol=0.2)


# Updates --------------------------------------------------------------------------------------


def test_plain_iterations_are_those_of_the_oracle(small_blocks):
    rng, shape, rate = (
        np.random.default_rng(1),
        np.array([0.1, 0.5, 1.0]),
        np.array([0.2, 1.0, 3.0]),
    )
    gamma, W = rng.gamma(1.0, size=(len(X), 3)) + 0.1, rng.dirichlet(np.ones(X.shape[1]), size=3).T
    model = nmfscale.GammaPoisson(
        3, shape_loadings=shape, rate_loadings=rate, max_iter=4, tol=0, n_threads=1,
        extrapolate=False,
    ).fit(X, components=3 * W.T, loadings=gamma)  # fmt: skip
    for _ in range(4):
        gamma, W = oracle.step_plain(X, gamma, W, shape, rate)
    assert_allclose(model.loadings_shape_, gamma, rtol=1e-9)
    assert_allclose(model.components_, W.T, rtol=1e-9, atol=1e-28)
    assert_allclose(model.loadings_, gamma / (1 + rate), rtol=1e-9)


def test_hierarchical_iterations_are_those_of_the_oracle(small_blocks):
    rng = np.random.default_rng(1)
    gamma, shapes = rng.gamma(1.0, size=(len(X), 3)) + 0.1, rng.gamma(1.0, size=(3, 60)) + 0.4
    model = nmfscale.GammaPoisson(
        3, **DEEP, shape_loadings=[0.1, 0.5, 1.0], shape_rates=[1.2, 0.6], mean_rates=[3.0, 0.5],
        max_iter=4, tol=0, n_threads=1, extrapolate=False,
    ).fit(X, components=shapes, loadings=gamma)  # fmt: skip
    a, c, of_xi, of_eta = priors_of(model)
    shapes, (n, m) = shapes.T, X.shape
    expected_sizes = shapes.sum(axis=0) - m * c
    totals = np.sqrt(expected_sizes * n * a / 3.0 / (m * c / 0.5))
    for _ in range(4):
        gamma, shapes, totals = oracle.step_deep(X, gamma, shapes, totals, a, c, of_xi, of_eta)
    assert_allclose(model.loadings_shape_, gamma, rtol=1e-9)
    assert_allclose(model.components_shape_, shapes.T, rtol=1e-9)
    assert_allclose(model.loadings_totals_, totals, rtol=1e-9)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000), n_components=st.integers(1, 5), deep=st.booleans(),
    shape=st.sampled_from([0.01, 0.3, 3.0]), mean=st.sampled_from([None, 0.01, 1.0, 100.0]),
    extrapolate=st.booleans(), inner_iter=st.integers(1, 3),
    init=st.sampled_from(["random", "poisson"]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_never_falls(seed, n_components, deep, shape, mean, extrapolate, inner_iter, init):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.3, size=(12, 9)) * 3)
    model = fit(
        counts, n_components, hierarchical=deep, shape_loadings=shape, shape_factors=shape,
        mean_rates=mean, rate_loadings=None if deep else mean, extrapolate=extrapolate,
        inner_iter=inner_iter, init=init, random_state=seed,
    )  # fmt: skip
    assert np.all(np.diff(model.history_["elbo"]) >= -1e-12 * abs(model.elbo_) - 1e-9)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-9, atol=1e-9)
    assert np.isfinite(model.transform(counts)).all() and model.score(counts) < 0
    assert (model.loadings_shape_ >= shape).all()  # no momentum goes below a prior
    assert not deep or (model.components_shape_ >= shape).all()


def test_hierarchical_fit_rests_under_the_updates_of_gopalan():
    """Shapes and rates one after the other, as in Gopalan, Hofman and Blei: nothing moves."""
    model = fit(**DEEP, max_iter=3000, tol=1e-9)
    a, c, (s, t), (s_eta, t_eta) = priors_of(model)
    theta, beta = model.loadings_, model.components_.T
    xi, eta = model.sample_rates_, model.feature_rates_
    q_theta = model.loadings_shape_, xi[:, None] + beta.sum(axis=0)
    q_beta = model.components_shape_.T, eta[:, None] + theta.sum(axis=0)
    phi = oracle.shares(oracle.moments(*q_theta)[1], oracle.moments(*q_beta)[1])
    assert_allclose(a + np.einsum("ij,ijk->ik", X, phi), q_theta[0], rtol=1e-3)
    assert_allclose(c + np.einsum("ij,ijk->jk", X, phi), q_beta[0], rtol=1e-3)
    assert_allclose((s + a.sum()) / (t + theta.sum(axis=1)), xi, rtol=1e-9)
    assert_allclose((s_eta + 3 * c) / (t_eta + beta.sum(axis=1)), eta, rtol=1e-9)
    assert_allclose(q_beta[0] / q_beta[1], beta, rtol=1e-3)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:GammaPoisson has not converged after 2000")
def test_short_samples_let_go_of_components_one_after_the_other(data_dir):
    """Of 20, by 154 counts on average: for thousands of iterations, and the fit says so."""
    counts = scipy.sparse.load_npz(data_dir / "beer_canada.npz")
    model = nmfscale.GammaPoisson(20, random_state=1).fit(counts)
    assert model.elbo_ > -427_600 and model.stop_reason_ == "max_iter"
    assert (np.diff(model.history_["elbo"]) >= 0).all()


def test_momentum_gets_further():
    for options in ({}, DEEP):
        assert fit(**options).elbo_ > fit(**options, extrapolate=False).elbo_


def test_empty_rows_and_columns():
    counts = X.copy()
    counts[5], counts[:, 9] = 0, 0
    for options in ({}, DEEP):
        model = fit(counts, **options)
        assert_allclose(model.loadings_shape_[5], model.shape_loadings_, rtol=1e-9)
        assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-10)
        assert_allclose(model.components_shape_[:, 9], 0.3 if model.hierarchical else 0)


# Beside LDA -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_iter", [1, 2, 5, 20])
@pytest.mark.parametrize("rate", [0.01, 1.0, None])
def test_with_one_rate_iterates_are_those_of_lda(n_iter, rate):
    """Lemma E.3 of Geiger and Park; and the bounds differ by a constant."""
    counts, shape = X.copy(), np.array([0.1, 0.3, 0.5])
    counts[5], counts[:, 9] = 0, 0
    options = {"max_iter": n_iter, "tol": 0, "random_state": 0, "n_threads": 1}
    model = nmfscale.GammaPoisson(
        3, shape_loadings=shape, rate_loadings=rate, extrapolate=False, **options
    ).fit(counts)
    beside = nmfscale.LDA(
        3, doc_topic_prior=shape, topic_word_prior=0, extrapolate=False, **options
    ).fit(counts)
    assert_allclose(model.components_, beside.components_, rtol=1e-12, atol=1e-300)
    assert_allclose(model.loadings_shape_, beside.doc_topic_posterior_, rtol=1e-12)
    totals, a = counts.sum(axis=1), model.rate_loadings_[0]
    assert_allclose(model.loadings_shape_.sum(axis=1), totals + shape.sum(), rtol=1e-12)
    # totals are negative binomial; LDA's counts are draws in their order
    constant = stats.nbinom(shape.sum(), a / (1 + a)).logpmf(totals).sum()
    constant += gammaln(totals + 1).sum() - gammaln(counts + 1).sum()
    assert_allclose(model.history_["elbo"] - beside.history_["elbo"], constant, rtol=1e-10)
    shares = model.transform(counts)
    assert_allclose(shares / shares.sum(axis=1, keepdims=True), beside.transform(counts), rtol=1e-9)


def test_rates_that_differ_are_another_model():
    found = [fit(rate_loadings=rate).components_ for rate in (0.1, [0.02, 0.1, 3.0])]
    assert np.abs(found[0] - found[1]).max() > 0.01


# New samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "hierarchical"])
def test_transform_finds_the_best_posterior(options):
    """A further round of the oracle changes nothing; nor do other samples."""
    model = fit(**options, max_iter=200, mean_change_tol=1e-9, max_sample_update_iter=5000)
    found = model.transform(X)
    beta, rest = model.components_.T, 1 + (0 if model.hierarchical else model.rate_loadings_)
    if model.hierarchical:
        a, c, of_xi, _ = priors_of(model)
        log_beta = oracle.moments(
            model.components_shape_.T, model.feature_rates_[:, None] + model.loadings_totals_
        )[1]
        u = (of_xi[0] + a.sum()) / (of_xi[1] + found.sum(axis=1))
        rest = u[:, None] + beta.sum(axis=0)
    else:
        a, log_beta = model.shape_loadings_, np.log(np.maximum(beta, 1e-300))
    gamma = found * rest
    phi = oracle.shares(oracle.moments(gamma, np.broadcast_to(rest, gamma.shape))[1], log_beta)
    assert_allclose(a + np.einsum("ij,ijk->ik", X, phi), gamma, rtol=1e-4, atol=1e-6)
    assert_allclose(model.transform(X[10:43:3]), found[10:43:3], rtol=1e-12)


def test_score_is_the_bound_of_samples():
    model = fit(**DEEP, max_iter=400, mean_change_tol=1e-8, max_sample_update_iter=5000)
    a, c, of_xi, of_eta = priors_of(model)
    columns = elbo_of(model, X) - model.score(X) * X.sum()
    rates = model.feature_rates_[:, None] + model.loadings_totals_
    q_eta = np.full(60, of_eta[0] + 3 * c), (of_eta[0] + 3 * c) / model.feature_rates_
    mean, log_mean = (each[:, None] for each in oracle.moments(*q_eta))
    expected = oracle.minus_divergence(model.components_shape_.T, rates, c, mean, log_mean).sum()
    expected += oracle.minus_divergence(*q_eta, *of_eta).sum()
    assert_allclose(columns, expected, rtol=1e-3)


def test_depth_is_no_topic():
    """Samples of two groups that differ in depth alone have loadings in proportion to it."""
    rng = np.random.default_rng(0)
    mixed, topics = rng.dirichlet([0.3] * 3, size=300), rng.dirichlet([0.1] * 50, size=3)
    depth = np.where(np.arange(300) % 2, 400, 40)
    counts = rng.poisson(depth[:, None] * mixed @ topics)
    model = fit(counts, **DEEP, max_iter=300)
    near = np.corrcoef(np.vstack([model.components_, topics]))[:3, 3:]
    assert near.max(axis=1).min() > 0.98 and len(set(near.argmax(axis=1))) == 3
    assert stats.spearmanr(1 / model.sample_rates_, counts.sum(axis=1)).statistic > 0.95


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"shape_loadings": [1.0, 2.0]}, {}, "shape_loadings has shape"),
        ({"rate_loadings": [1.0, 0.0, 1.0]}, {}, r"rate_loadings\[1\] is 0.0; positive"),
        ({"rate_loadings": 1.0, **DEEP}, {}, "rates are drawn: give mean_rates"),
        ({"mean_rates": [1.0, 2.0, 3.0], **DEEP}, {}, "mean_rates has shape"),
        ({"shape_rates": [1.0, -2.0], **DEEP}, {}, r"shape_rates\[1\] is -2.0; positive"),
        ({}, {"components": np.ones((3, 4))}, "components has shape"),
        (DEEP, {"components": np.zeros((3, 60))}, r"components\[0, 0\] is 0.0; positive"),
        ({}, {"loadings": -np.ones((90, 3))}, r"loadings\[0, 0\] is -1.0; positive"),
        ({"memory_limit": 1000}, {}, "raise memory_limit"),
    ],
)
def test_what_is_refused(options, arguments, words):
    with pytest.raises((ValueError, MemoryError), match=words):
        nmfscale.GammaPoisson(3, n_threads=1, **options).fit(X, **arguments)
