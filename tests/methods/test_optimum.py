"""What a fit hands back: the optimum also of deep counts, exact zeros, what is held as it was."""

import numpy as np
import pytest
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal

from nmfscale import PoissonNMF, TopicModel
from nmfscale.likelihood import loglik_poisson
from nmfscale.methods.factors import Factor
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.methods.poisson.steps import convert

PAPER = [name for name in SOLVERS if name not in ("auto", "joint-em")]


def topics(depth, n=40, m=30, seed=1):
    """Counts of which a row has about `depth`, in four topics."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(4, 0.1), n), rng.dirichlet(np.full(m, 0.1), 4)
    return rng.poisson(depth * shares[0] @ shares[1])


def counts(n=30, m=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.5, 3, (n, 3)) @ rng.gamma(0.5, 3, (3, m)))


def start(X, K, seed=0):
    rng = np.random.default_rng(seed)
    loadings = rng.gamma(1, 1, (X.shape[0], K))
    return {"loadings": loadings, "components": rng.gamma(1, 1, (X.shape[1], K)).T}


# Deep counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1e4, 1e6, 1e7])
def test_deep_counts_are_fitted_to_the_optimum(depth):
    # where float32 cannot tell two points apart: it carried such fits until they went in circles
    X = topics(depth)
    first = PoissonNMF(4, tol=1e-6, random_state=0).fit(X)
    L, F = (np.maximum(factor, 1e-8) for factor in (first.loadings_, first.components_.T))
    again = PoissonNMF(4, tol=1e-7).fit(
        X, loadings=L, components=F.T, fixed_topics=[False] * 4
    )  # float64 throughout
    assert first.converged_
    assert again.loglik_ - first.loglik_ < 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("depth", [1e5, 1e7])
def test_loadings_of_deep_rows_are_optimal(dtype, depth):
    # a loading next to zero has a small residual, a product with it, wherever it should go
    lost = 0.0
    for seed in range(3):
        X = topics(depth, 60, 50, seed)
        model = PoissonNMF(4, dtype=dtype, random_state=seed).fit(X)
        F = model.components_.T.astype(float)
        of_fit, of_rows = (
            loglik_poisson(X, L.astype(float), F) for L in (model.loadings_, model.transform(X))
        )
        lost = max(lost, (of_fit - of_rows).max())
    assert lost < 0.5


def test_a_loading_next_to_zero_comes_back():
    rows = [807.2829, 355.1306, 0.0251, 0.0803, 1.7], [0.0033, 0.4611, 0.0038, 898.8685, 882.0]
    x = np.array([[3, 13, 88966, 717167, 5]])
    options = {"components": rows, "fixed_topics": [True, True]}
    single, double = (
        PoissonNMF(2, dtype=dtype, max_iter=1, tol=0).fit(x, **options).transform(x)
        for dtype in ("float32", "float64")
    )
    assert_allclose(single, double, rtol=1e-5)


# What is held ---------------------------------------------------------------------------------


@pytest.mark.parametrize("extrapolate", [False, True])
@pytest.mark.parametrize("solver", PAPER)
def test_the_history_is_that_of_the_held_features(solver, extrapolate):
    X, held = counts(), np.arange(20) < 8
    options = {"solver": solver, "extrapolate": extrapolate, "max_iter": 100, "tol": 0}
    model = PoissonNMF(3, **options).fit(X, fixed_features=held, **start(X, 3))
    loglik = model.history_["loglik"]
    assert loglik[-2] == pytest.approx(loglik[-1], abs=0.1)
    if solver == "em" and not extrapolate:
        assert (np.diff(loglik) > -1e-6).all()


@pytest.mark.parametrize("solver", ["em", "auto"])
def test_what_is_held_has_no_residual(solver):
    X, options = counts(), {"solver": solver, "max_iter": 6, "tol": 0}
    for held, n_rows, name in (("samples", 30, "loadings"), ("features", 20, "factors")):
        given = {f"fixed_{held}": np.full(n_rows, True)}
        history = PoissonNMF(3, **options).fit(X, **given, **start(X, 3)).history_
        assert not history[f"kkt_{name}"].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_held_samples_are_the_same_to_the_bit_whatever_their_sizes(dtype):
    X = np.random.default_rng(0).poisson(3, (20, 6))
    given, held = start(X, 2), np.arange(20) < 10
    given["loadings"][:2] = [[0, 1], [1e-12, 1]]
    for seed in range(4):
        sizes = np.random.default_rng(seed).gamma(2, 1, 20)
        model = PoissonNMF(2, dtype=dtype, max_iter=20, tol=0)
        model.fit(X, size_factors=sizes, fixed_samples=held, **given)
        assert_array_equal(model.loadings_[:10], given["loadings"][:10].astype(dtype))


# Zeros ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_zeros_are_exact_once_a_fit_has_converged(solver):
    X = counts(30, 15)
    X[3] = 0
    X[:, 4] = 0
    model = PoissonNMF(3, solver=solver, random_state=0).fit(X)
    assert model.converged_
    assert not model.loadings_[3].any() and not model.components_[:, 4].any()
    if solver not in ("em", "joint-em"):  # which reach zero only in the limit
        for factor in (model.loadings_, model.components_):
            assert factor[factor > 0].min() > 1e-8
    loadings = model.transform(X)
    assert (loadings == 0).any() and loadings[loadings > 0].min() > 1e-8


@pytest.mark.parametrize("solver", ["em", "ccd", "newton", "auto"])
def test_what_has_a_prior_is_not_set_to_zero(solver):
    X = topics(1e3)
    model = PoissonNMF(4, solver=solver, random_state=0, prior_loadings=1.1, max_iter=5, tol=0)
    loglik = model.fit(X).history_["loglik"]
    assert loglik[-1] >= loglik[:-1].max() - 1e-6 * abs(loglik[-1])
    assert (model.loadings_ > 0).all()


@pytest.mark.parametrize(("solver", "seed"), [("newton", 8), ("newton", 18), ("ccd", 18)])
def test_what_alone_explains_a_count_is_not_set_to_zero(solver, seed):
    """Of a fit that ended early, what is at the floor may carry what others do not yet."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(1e4 * rng.gamma(0.3, size=(30, 4)) @ rng.gamma(0.3, size=(4, 20)))
    model = PoissonNMF(6, solver=solver, random_state=0, max_iter=2, tol=0).fit(X)
    L, F = model.loadings_, model.components_.T
    raised = loglik_poisson(X, np.maximum(L, 1e-10), np.maximum(F, 1e-10)).sum()
    assert model.loglik_ >= raised - 1e-6 * abs(raised)


def test_a_sample_of_size_zero_has_a_finite_share():
    given = {"loadings": [[0.0], [1.0]], "components": [[1.0, 1.0]]}
    model = TopicModel(1, max_iter=3, tol=0)
    assert model.fit([[3, 1], [2, 5]], fixed_samples=[True, False], **given).loglik_ < 0


def test_a_component_without_factors_has_the_loadings_of_its_prior():
    X, F = [[5, 1], [2, 7]], np.array([[1.0, 1, 0], [1, 1, 0]])
    options = {"prior_loadings": (2.0, 4.0), "max_iter": 200, "tol": 0}
    held = {"loadings": np.ones((2, 3)), "components": F.T, "fixed_topics": [False, False, True]}
    model = PoissonNMF(3, **options).fit(X, **held)
    assert_allclose(model.loadings_[:, 2], 1 / 4)
    assert_allclose(model.transform(X)[:, 2], 1 / 4)
    shares = TopicModel(3, **options).fit(X, **held).transform(X)
    assert_array_equal(shares[:, 2], 0)


# Scales ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "scd", "em"])
@pytest.mark.parametrize("scale", [1e-14, 1e-7, 1e14, *at_night(1e-10, 1e7, 1e10)])
def test_the_scale_of_what_is_held_changes_nothing(solver, scale):
    """Loadings of held topics, factors of held samples, and those of new rows, at any scale."""
    rng = np.random.default_rng(0)
    L, F = rng.gamma(0.5, size=(60, 3)) + 1e-3, rng.gamma(0.5, size=(40, 3)) + 1e-3
    X = rng.poisson(3 * L @ F.T)

    held = {
        "components": ("fixed_topics", [True] * 3, F.T),
        "loadings": ("fixed_samples", [True] * 60, L),
    }
    for name, (mask, everything, factor) in held.items():
        best, model = (
            PoissonNMF(3, solver=solver, tol=1e-6, random_state=0).fit(
                X, **{name: factor * c, mask: everything}
            )
            for c in (1, scale)
        )
        # EM stops early, at points that depend on the digits of the start
        assert_allclose(model.loglik_, best.loglik_, rtol=1e-3 if solver == "em" else 1e-7)
        found = loglik_poisson(X, model.loadings_, model.components_.T).sum()
        assert_allclose(found, model.loglik_, rtol=1e-9)
        if name == "components":
            assert_allclose(model.transform(X) * scale, best.transform(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_log_posterior_is_that_of_the_factors_at_any_scale(scale):
    X = counts()
    given = start(X, 3)
    model = PoissonNMF(3, prior_factors=1.5, prior_loadings=(1.2, 0.1), max_iter=50, tol=0)
    model.fit(X, loadings=given["loadings"] / scale, components=given["components"] * scale)
    L, F = model.loadings_, model.components_.T
    prior = (0.5 * np.log(F) - F).sum() + (0.2 * np.log(L) - 0.1 * L).sum()
    assert_allclose(model.loglik_, loglik_poisson(X, L, F).sum() + prior, rtol=1e-8)


def test_zeros_that_a_fit_was_ended_before_are_lifted_in_every_block():
    """Rows of a block, behind which there is padding."""
    rows = Factor(np.zeros((5, 3)), 3, 2)
    convert(rows, zeros="lift")
    assert_array_equal(rows.values > 0, np.array([[1, 1, 1, 0, 0]]).T * [1, 1, 0])
