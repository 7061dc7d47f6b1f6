"""Penalties that make loadings sparse: steps, objective, zeros (Geiger and Park, Appendix F)."""

from itertools import pairwise

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose

import nmfscale

K = 3
COUNTS, TRUTH = nmfscale.simulate_topic_counts(80, 40, 4, size=60.0, random_state=0)
X = COUNTS.toarray().astype(float)
_rng = np.random.default_rng(0)
START = {"L": _rng.uniform(5, 20, (80, K)), "F": _rng.uniform(0.5, 1, (40, K))}
NORMS = {"l1": 1, "l2": 2}
# Exponents and norms that do more than rescale the loadings.
SPARSE = [("l1", 0.5), ("l2", 1.0), ("l2", 0.5)]


def fit(weight, norm, q, estimator=nmfscale.PoissonNMF, **options):
    model = estimator(
        K, solver="joint-em", l1_penalty=weight, factor_norm=norm, penalty_exponent=q, tol=0,
        **{"max_iter": 100, "random_state": 0} | options,
    )  # fmt: skip
    return model.fit(COUNTS, **START)


@pytest.mark.parametrize(("norm", "q"), SPARSE)
def test_steps_and_objective_are_those_of_the_oracle(norm, q):
    weight, p = 2.0, NORMS[norm]
    norms = np.linalg.norm(START["F"], p, axis=0)
    L, F = START["L"] * norms, START["F"] / norms
    model = fit(weight, norm, q, max_iter=6)
    for loglik in model.history_["loglik"][:-1]:
        L, F = oracle.step_penalised(X, L, F, weight, q, p)
        assert_allclose(
            loglik, oracle.penalised_loglik(X, L, F, weight, q, p), rtol=1e-7
        )  # zeros are 1e-10
    _, F = oracle.step_penalised(X, L, F, weight, q, p)
    assert_allclose(model.components_.T, F, rtol=1e-7, atol=1e-9)
    assert_allclose(np.linalg.norm(model.components_, p, axis=1), 1, rtol=1e-7)


@pytest.mark.parametrize(("norm", "q"), SPARSE)
def test_the_objective_never_falls_and_zeros_grow_with_the_penalty(norm, q):
    shares = []
    for weight in (0.1, 1.0, 10.0):
        model = fit(weight, norm, q)
        history = model.history_["loglik"]
        assert (np.diff(history) > -1e-9 * np.abs(history[1:])).all()
        L, F = model.loadings_, model.components_.T
        expected = oracle.penalised_loglik(X, L, F, weight, q, NORMS[norm])
        assert_allclose(model.loglik_, expected, rtol=1e-8)
        # Theorem F.1: the same at every scale of the factors
        scales = np.array([0.1, 3.0, 20.0])
        scaled = oracle.penalised_loglik(X, L * scales, F / scales, weight, q, NORMS[norm])
        assert_allclose(scaled, expected, rtol=1e-9)
        shares.append((L == 0).mean())
    assert all(less + 0.02 < more for less, more in pairwise(shares))
    assert shares[-1] > (fit(0.0, "l1", 1.0).loadings_ == 0).mean() + 0.2


def test_no_sparser_than_without_a_penalty_if_it_only_rescales():
    plain, penalised = (fit(weight, "l1", 1.0) for weight in (0.0, 10.0))
    assert ((plain.loadings_ == 0) == (penalised.loadings_ == 0)).all()


def test_transform_finds_the_penalised_optimum_of_new_rows():
    model = fit(2.0, "l2", 1.0)
    F, u = model.components_.T, model.components_.sum(axis=1) + 2.0
    found = model.transform(COUNTS)
    assert_allclose(found, model.loadings_, rtol=1e-5, atol=1e-6)
    for x, b in zip(X[:10], found, strict=False):
        assert (
            oracle.row_loss(x, F, u, b) < oracle.row_loss(x, F, u, oracle.solve_row(x, F, u)) + 1e-6
        )
    # Not convex: from the optimum without a penalty, the loss only falls.
    model = fit(2.0, "l1", 0.5)
    F = model.components_.T
    plain = nmfscale.poisson_regression(F, COUNTS.T)
    losses = [
        -oracle.penalised_loglik(X, L, F, 2.0, 0.5, 1) for L in (plain, model.transform(COUNTS))
    ]
    assert losses[1] < losses[0]


def test_sizes_and_weights_of_samples():
    sizes, weights = _rng.uniform(0.5, 2, 80), _rng.uniform(0, 2, 80)
    model = nmfscale.PoissonNMF(
        K,
        solver="joint-em",
        l1_penalty=1.5,
        penalty_exponent=0.5,
        factor_norm="l2",
        max_iter=20,
        tol=0,
        random_state=0,
    ).fit(COUNTS, size_factors=sizes, row_weights=weights)
    L, F = sizes[:, None] * model.loadings_, model.components_.T
    each = oracle.loglik_poisson(X, L, F) - 1.5 * (L**0.5).sum(axis=1)
    assert_allclose(model.loglik_, weights @ each, rtol=1e-7)
    found = model.transform(COUNTS, size_factors=sizes) * sizes[:, None]
    assert_allclose(found, model.transform(COUNTS, size_factors=np.ones(80)), rtol=1e-6, atol=1e-6)


def test_a_topic_model_is_the_same_fit():
    one, other = (fit(1.0, "l2", 1.0, name) for name in (nmfscale.PoissonNMF, nmfscale.TopicModel))
    L, F = other.poisson_factors()
    assert_allclose(L @ F.T, one.loadings_ @ one.components_, rtol=1e-6, atol=1e-6)
    assert_allclose(other.transform(COUNTS), other.loadings_, rtol=1e-5, atol=1e-6)
    assert (other.loadings_ == 0).mean() == (one.loadings_ == 0).mean()
