"""What must hold for any counts and any factors, and for any fit."""

import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

import nmfscale
from nmfscale.experimental import SparsityPenalty
from nmfscale.methods.factors import rescale

FEW = settings(max_examples=10, deadline=None, derandomize=True)
MANY = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def problems(draw, fewest_components=1, zeros=True):
    """Counts X and factors L, F of very different scales, with zeros in all three."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = draw(st.integers(1, 30)), draw(st.integers(1, 30))
    K = draw(st.integers(fewest_components, 5))
    size = 10.0 ** draw(st.floats(-1.0, 3.0))
    L, F = rng.gamma(0.7, size=(n, K)), rng.gamma(0.7, size=(m, K)) * size / K
    X = rng.poisson(rng.permutation(L) @ F.T * rng.binomial(1, 0.7, size=(n, m))).astype(float)
    if zeros:
        # The last topic stays whole, so that every expected count is positive, and so do the first
        # rows, so that no topic is dead.
        L[1:, :-1] *= rng.binomial(1, 0.8, size=(n - 1, K - 1))
        F[1:, :-1] *= rng.binomial(1, 0.8, size=(m - 1, K - 1))
    L *= 10.0 ** rng.uniform(-3.0, 3.0, size=K)
    return X, L, F


@st.composite
def fits(draw):
    """Counts without empty rows or columns, and a positive start."""
    X, L, F = draw(problems(fewest_components=2, zeros=False))
    X = X[np.ix_(X.sum(axis=1) > 0, X.sum(axis=0) > 0)]
    assume(min(X.shape) >= 3)
    rng = np.random.default_rng(int(X.sum()))
    K = L.shape[1]
    return X, rng.uniform(0.1, 1.0, (X.shape[0], K)), rng.uniform(0.1, 1.0, (X.shape[1], K))


def fit(X, L, F, solver, n_iter, **options):
    """Run n_iter plain outer iterations from given factors."""
    options = {"extrapolate": False, "n_threads": 1} | options
    model = nmfscale.PoissonNMF(L.shape[1], solver=solver, max_iter=n_iter, tol=0, **options)
    return model.fit(csr_array(X), loadings=L, components=F.T)


def settled(X, L, F):
    """Return X and factors after 20 EM iterations.

    In the first iterations of coordinate descent from anywhere, rounding grows a millionfold.
    """
    model = fit(X, L, F, "em", 20)
    return X, model.loadings_, np.ascontiguousarray(model.components_.T)


# Likelihoods and conditions --------------------------------------------------------------------


@given(problems())
@MANY
def test_poisson_is_multinomial_times_poisson_of_the_totals(problem):
    X, L, F = problem
    t, s = X.sum(axis=1), L @ F.sum(axis=0)
    poisson = nmfscale.likelihood.loglik_poisson(X, L, F)
    multinomial = nmfscale.likelihood.loglik_multinomial(X, L, F)
    of_totals = oracle.poisson_logpmf(t, s)
    # Relative to the largest numbers that enter, which may cancel.
    size = np.abs(poisson) + np.abs(multinomial) + np.abs(of_totals) + s + t * np.log1p(t) + 1.0
    assert np.all(np.abs(poisson - multinomial - of_totals) <= 1e-12 * size)


@given(problems())
@MANY
def test_the_multinomial_likelihood_does_not_see_the_sizes(problem):
    X, L, F = problem
    sizes = np.geomspace(1e-3, 1e3, len(L))[:, None]
    size = 1.0 + X.sum(axis=1) * np.log1p(X.sum(axis=1))
    change = nmfscale.likelihood.loglik_multinomial(
        X, sizes * L, F
    ) - nmfscale.likelihood.loglik_multinomial(X, L, F)
    assert np.all(np.abs(change) <= 1e-12 * size)


@given(problems())
@MANY
def test_likelihoods_and_residuals_are_those_of_the_oracle(problem):
    X, L, F = problem
    mu = L @ F.T
    size = np.sum(X * np.abs(np.log(mu)) + mu + X * np.log1p(X), axis=1) + 1.0
    for name in ("loglik_poisson", "loglik_multinomial", "deviance_poisson"):
        found = getattr(nmfscale.likelihood, name)(csr_array(X), L, F)
        assert found.shape == (len(X),)
        assert np.all(np.abs(found - getattr(oracle, name)(X, L, F)) <= 1e-13 * size), name
    ours, exact = (
        nmfscale.likelihood.kkt_residuals(csr_array(X), L, F),
        oracle.kkt_residuals(X, L, F),
    )
    parts = L * ((1.0 + X / mu) @ F), F * ((1.0 + X / mu).T @ L)
    for found, expected, size in zip(ours, exact, parts, strict=True):
        assert np.all(np.abs(found - expected) <= 1e-13 * size)


@given(problems())
@MANY
def test_deviance_is_twice_the_distance_to_the_saturated_model(problem):
    X, L, F = problem
    saturated = np.sum(oracle.poisson_logpmf(X, X), axis=1)
    gap = 2.0 * (saturated - nmfscale.likelihood.loglik_poisson(X, L, F))
    assert_allclose(
        nmfscale.likelihood.deviance_poisson(X, L, F), gap, rtol=1e-9, atol=1e-9 * X.max(initial=1)
    )


@given(problems())
@MANY
def test_residuals_sum_to_what_the_totals_miss(problem):
    X, L, F = problem
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, L, F)
    t, s = X.sum(axis=1), L @ F.sum(axis=0)
    assert_allclose(of_L.sum(axis=1), s - t, rtol=1e-11, atol=1e-11 * np.max(s + t))
    c, f = X.sum(axis=0), F @ L.sum(axis=0)
    assert_allclose(of_F.sum(axis=1), f - c, rtol=1e-11, atol=1e-11 * np.max(f + c))
    topic = L.sum(axis=0) * F.sum(axis=0)
    difference = np.abs(of_L.sum(axis=0) - of_F.sum(axis=0))
    assert np.all(difference <= 1e-11 * (topic + X.sum()))


@given(problems())
@MANY
def test_transposed_counts_swap_the_residuals(problem):
    X, L, F = problem
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, L, F)
    swapped = nmfscale.likelihood.kkt_residuals(X.T, F, L)
    size = 1e-13 * (X.sum() + np.sum(L @ F.T))
    assert_allclose(swapped[1], of_L, atol=size)
    assert_allclose(swapped[0], of_F, atol=size)


# Conversion ------------------------------------------------------------------------------------


@given(problems())
@MANY
def test_conversion_and_back(problem):
    _, L, F = problem
    P, W, s, u = nmfscale.likelihood.poisson_to_multinomial(L, F)
    for ours, expected in zip((P, W, s, u), oracle.poisson_to_multinomial(L, F), strict=True):
        assert_allclose(ours, expected, rtol=1e-13)
    assert_allclose(P.sum(axis=1), 1.0, rtol=1e-13)
    assert_allclose(W.sum(axis=0), 1.0, rtol=1e-13)
    back = nmfscale.likelihood.multinomial_to_poisson(P, W, s, u)
    assert_allclose(back[0], L, rtol=1e-13)
    assert_allclose(back[1], F, rtol=1e-13)


@given(problems())
@MANY
def test_rescaling_keeps_the_expected_counts(problem):
    _, L, F = problem
    balanced = rescale(L, F)
    assert_allclose(balanced[0] @ balanced[1].T, L @ F.T, rtol=1e-12)
    assert_allclose(balanced[0].mean(axis=0), balanced[1].mean(axis=0), rtol=1e-12)
    for ours, expected in zip(balanced, oracle.rescale(L, F), strict=True):
        assert_allclose(ours, expected, rtol=1e-12)


# Fits ------------------------------------------------------------------------------------------


@given(fits())
@FEW
def test_one_component_has_a_closed_form(problem):
    X, _, _ = problem
    model = nmfscale.PoissonNMF(1, n_threads=1).fit(X)
    t, c = X.sum(axis=1), X.sum(axis=0)
    expected = np.outer(t, c) / X.sum()
    assert_allclose(model.loadings_ @ model.components_, expected, rtol=1e-12)
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, model.loadings_, model.components_.T)
    assert np.abs(of_L).max() <= 1e-12 * t.max()
    assert np.abs(of_F).max() <= 1e-12 * c.max()
    assert model.converged_


@pytest.mark.parametrize("solver", ["em", "sn"])
@given(fits())
@FEW
def test_methods_with_a_guarantee_never_lower_the_likelihood(solver, problem):
    X, L, F = problem
    history = fit(X, L, F, solver, 25).history_
    loglik = np.concatenate([[oracle.loglik_poisson(X, L, F).sum()], history["loglik"]])
    assert np.all(np.diff(loglik) >= -1e-10 * np.abs(loglik[:-1]))


@given(fits())
@FEW
def test_joint_em_takes_the_steps_of_plsa(problem):
    """Lemma B.1 of Geiger and Park: from normalised factors F are equal, L is P times totals."""
    X, L, F = problem
    start = P, W = L / L.sum(axis=1, keepdims=True), F / F.sum(axis=0)
    totals = X.sum(axis=1, keepdims=True)
    for n_iter in range(1, 9):
        P, W = oracle.step_plsa(X, P, W)
        poisson = fit(X, *start, "joint-em", n_iter)
        assert_allclose(poisson.components_.T, W, rtol=1e-9, atol=1e-9)
        assert_allclose(poisson.loadings_, totals * P, rtol=1e-9, atol=1e-9 * totals.max())
        assert_allclose(poisson.loadings_.sum(axis=1, keepdims=True), totals, rtol=1e-9)


@given(fits())
@FEW
def test_optimum_of_the_topic_model_is_a_fixed_point_of_plsa(problem):
    X, L, F = problem
    model = nmfscale.TopicModel(L.shape[1], tol=1e-7).fit(X, loadings=L, components=F.T)
    P, W = oracle.step_plsa(X, model.loadings_ + 1e-12, model.components_.T + 1e-12)
    assert_allclose(P, model.loadings_, atol=1e-4)
    assert_allclose(W, model.components_.T, atol=1e-4)


@given(fits(), st.sampled_from([0.1, 1.0, 10.0]))
@FEW
def test_an_l1_penalty_only_rescales_the_loadings(problem, penalty):
    """Lemma 6.1 of Geiger and Park, of every iterate: steps and loss are those with the penalty."""
    X, L, F = problem
    start = L, F = L, F / F.sum(axis=0)
    for n_iter in range(1, 7):
        L, F = oracle.step_joint(X, L, F, penalty)
        found = fit(X, *start, "joint-em", n_iter, penalty=SparsityPenalty(penalty))
        assert_allclose(found.components_.T, F, rtol=1e-9, atol=1e-9)
        assert_allclose(found.loadings_, L, rtol=1e-9, atol=1e-9 * L.max())
        objective = oracle.loglik_poisson(X, L, F).sum() - penalty * L.sum()
        assert_allclose(found.loglik_, objective, rtol=1e-8)
        deviance = oracle.deviance_poisson(X, L, F).sum()
        assert_allclose(found.history_["deviance"][-1], deviance, rtol=1e-7)
    plain = fit(X, *start, "joint-em", n_iter)
    assert_array_equal(found.components_, plain.components_)
    assert_array_equal(found.loadings_, plain.loadings_ / (1 + penalty))
    u = found.components_.sum(axis=1) + penalty
    best, moved = (oracle.solve_row(X[0], F, u), found.transform(X[:1])[0])
    assert oracle.row_loss(X[0], F, u, moved) < oracle.row_loss(X[0], F, u, best) + 1e-6


@given(fits())
@FEW
def test_an_l1_penalty_with_sizes_and_weights(problem):
    X, L, F = problem
    rng, penalty = np.random.default_rng(0), 0.7
    sizes, weights = rng.uniform(0.5, 2, len(X)), rng.uniform(0, 2, len(X))
    model = nmfscale.TopicModel(
        L.shape[1], solver="joint-em", penalty=SparsityPenalty(penalty), max_iter=5, tol=0
    ).fit(X, size_factors=sizes, row_weights=weights)
    P, W, totals = model.loadings_, model.components_.T, model.size_factors_
    assert_allclose(totals * (1 + penalty), X.sum(axis=1), rtol=1e-7)
    each = nmfscale.likelihood.loglik_poisson(X, totals[:, None] * P, W) - penalty * totals
    assert_allclose(model.history_["loglik"][-1], weights @ each, rtol=1e-7)
    assert_allclose(
        model.loglik_, weights @ nmfscale.likelihood.loglik_multinomial(X, P, W), rtol=1e-7
    )


@given(fits())
@FEW
def test_joint_em_ends_with_topics_that_sum_to_one(problem):
    """At whatever scale the factors were given."""
    X, L, F = problem
    plain, scaled = (fit(X, L / c, F * c, "joint-em", 5) for c in (1, 1e9))
    assert_allclose(scaled.components_.sum(axis=1), 1, rtol=1e-8)
    assert_allclose(scaled.loadings_, plain.loadings_, rtol=1e-7, atol=1e-8)


@given(fits())
@FEW
def test_em_matches_the_column_totals(problem):
    X, L, F = problem
    model = fit(X, L, F, "em", 3)
    fitted = model.loadings_ @ model.components_
    assert_allclose(fitted.sum(axis=0), X.sum(axis=0), rtol=1e-8)


@pytest.mark.parametrize("solver", ["auto", *at_night("em", "scd", "sn")])
@given(fits())
@FEW
def test_order_of_rows_and_columns_does_not_matter(solver, problem):
    X, L, F = settled(*problem)
    rng = np.random.default_rng(3)
    rows, columns = rng.permutation(len(L)), rng.permutation(len(F))
    plain = fit(X, L, F, solver, 4)
    moved = fit(X[np.ix_(rows, columns)], L[rows], F[columns], solver, 4)
    assert_allclose(moved.history_["loglik"], plain.history_["loglik"], rtol=1e-9)
    expected = (plain.loadings_ @ plain.components_)[np.ix_(rows, columns)]
    assert_allclose(moved.loadings_ @ moved.components_, expected, rtol=1e-6, atol=1e-8)


@given(fits())
@FEW
def test_order_of_topics_does_not_matter_to_em(problem):
    X, L, F = problem
    order = np.random.default_rng(4).permutation(L.shape[1])
    plain, moved = fit(X, L, F, "em", 4), fit(X, L[:, order], F[:, order], "em", 4)
    assert_allclose(moved.loadings_, plain.loadings_[:, order], rtol=1e-8, atol=1e-10)
    assert_allclose(moved.components_, plain.components_[order], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("solver", ["scd", *at_night("em", "sn")])
@given(fits())
@FEW
def test_scale_of_a_start_does_not_matter(solver, problem):
    X, L, F = settled(*problem)
    scale = np.geomspace(1e-2, 1e2, L.shape[1])
    plain, scaled = fit(X, L, F, solver, 4), fit(X, L * scale, F / scale, solver, 4)
    assert_allclose(scaled.history_["loglik"], plain.history_["loglik"], rtol=1e-9)
    assert_allclose(scaled.loadings_, plain.loadings_, rtol=1e-6, atol=1e-8)


@given(fits())
@FEW
def test_counts_three_times_as_large_give_three_times_the_expectation(problem):
    X, L, F = problem
    plain, tripled = fit(X, L, F, "em", 6), fit(3.0 * X, L, F, "em", 6)
    expected = 3.0 * (plain.loadings_ @ plain.components_)
    assert_allclose(tripled.loadings_ @ tripled.components_, expected, rtol=1e-7, atol=1e-7)
    for field in ("kkt_loadings", "kkt_factors"):
        # The first residuals may be those of the start, which was not tripled.
        found, expected = tripled.history_[field][1:], plain.history_[field][1:]
        assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


@given(fits())
@FEW
def test_a_fit_leaves_its_inputs_alone(problem):
    X, L, F = problem
    copies = X.copy(), L.copy(), F.copy()
    fit(X, L, F, "auto", 3)
    for ours, copy in zip((X, L, F), copies, strict=True):
        assert_array_equal(ours, copy)
