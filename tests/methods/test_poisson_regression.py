"""poisson_regression finds the optimum of every response, by every solver."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from nmfscale import PoissonNMF
from nmfscale.likelihood import mixture_proportions, poisson_regression
from nmfscale.methods.poisson.regression import REGRESSION_SOLVERS

N, K, T = 90, 5, 20
_rng = np.random.default_rng(0)
A = _rng.gamma(0.5, size=(N, K))
B = _rng.gamma(0.5, size=(T, K)) * (_rng.random((T, K)) < 0.7)
Y = _rng.poisson(20 * A @ B.T)
Y[:, 3] = 0


def loss(b, A, y):
    """Return the negative log-likelihood without log y!, and its gradient."""
    mu = np.maximum(A @ b, 1e-300)
    return mu.sum() - y @ np.log(mu), A.sum(axis=0) - A.T @ (y / mu)


@pytest.mark.parametrize("solver", REGRESSION_SOLVERS)
def test_every_response_is_at_its_optimum(solver):
    found = poisson_regression(A, Y, solver=solver, max_iter=30_000, n_threads=1)
    assert found.shape == (T, K)
    assert_array_equal(found[3], 0)
    # The loss is convex: no b is better if no feasible direction leads down.
    for b, y in zip(np.delete(found, 3, axis=0), np.delete(Y, 3, axis=1).T, strict=True):
        _, gradient = loss(b, A, y)
        assert (np.abs(b * gradient) < 1e-5 * y.sum()).all()
        assert (gradient > -1e-3 * A.sum(axis=0)).all()


def test_the_optimum_of_scipy():
    found = poisson_regression(A, Y[:, 0])
    assert found.shape == (K,)
    best = minimize(
        loss, np.ones(K), (A, Y[:, 0]), jac=True, bounds=[(0, None)] * K,
        options={"ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    assert loss(found, A, Y[:, 0])[0] <= best.fun + 1e-9
    assert_allclose(found, best.x, atol=1e-4)


def test_one_column_has_a_closed_form():
    found = poisson_regression(A[:, :1], Y)
    assert_allclose(found[:, 0], Y.sum(axis=0) / A[:, 0].sum(), rtol=1e-12)


def test_with_the_factors_of_a_fit_it_is_transform():
    model = PoissonNMF(4, max_iter=20, tol=0, random_state=0).fit(Y.T)
    found = poisson_regression(model.components_.T, Y)
    assert_array_equal(found, model.transform(Y.T))
    shares = found * model.components_.sum(axis=1)
    full = np.arange(T) != 3
    expected = mixture_proportions(Y.T[full], model.components_.T)
    assert_allclose(shares[full] / shares[full].sum(axis=1, keepdims=True), expected, atol=1e-7)


@pytest.mark.parametrize("solver", ["auto", "scd"])
def test_bits_depend_neither_on_threads_nor_on_the_type_nor_on_other_responses(solver):
    found = poisson_regression(A, Y, solver=solver, n_threads=1)
    for y in (Y, sp.csc_array(Y), sp.coo_matrix(Y), Y.astype(float)):
        assert_array_equal(poisson_regression(A, y, solver=solver, n_threads=2), found)
    assert_allclose(poisson_regression(A, Y[:, 5], solver=solver), found[5], rtol=1e-6, atol=1e-9)


def test_samples_are_matched_by_name():
    names = [f"sample {i}" for i in range(N)]
    order = np.random.default_rng(1).permutation(N)
    design = pd.DataFrame(A, index=names)
    responses = pd.DataFrame(Y, index=names).iloc[order]
    expected = poisson_regression(A[order], Y[order])
    assert_array_equal(poisson_regression(design, responses), expected)
    one = poisson_regression(design, responses[0])
    assert one.shape == (K,)
    assert_allclose(one, expected[0], rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="sample 0"):
        poisson_regression(design.iloc[1:], responses)


def test_zero_columns_and_empty_responses():
    design = A * [1, 1, 0, 1, 1]
    found = poisson_regression(design, Y, solver="ccd")
    assert_array_equal(found[:, 2], 0)
    assert_allclose(found[:, [0, 1, 3, 4]], poisson_regression(design[:, [0, 1, 3, 4]], Y),
                    rtol=1e-3, atol=1e-4)  # fmt: skip
    assert_array_equal(poisson_regression(A, np.zeros(N)), np.zeros(K))


def test_a_response_that_is_not_fitted_is_reported():
    with pytest.warns(ConvergenceWarning, match=r"\d+ of 20 responses are not fitted after 2 iter"):
        poisson_regression(A, Y, solver="em", max_iter=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": A[:-1]}, rf"A has shape \({N - 1}, {K}\); it needs \({N}, at least 1\)"),
        ({"A": -A}, r"A\[0, 0\] is -"),
        ({"y": -Y}, r"y\[0, 0\] is -\d+.0; all entries must be finite and not negative"),
        ({"y": sp.csr_array(-Y)}, r"data of sparse y\[0\] is -"),
        ({"y": [np.nan] * N}, r"y\[0\] is nan"),
        ({"y": ["a"] * N}, "y has type <U1; pass real numbers"),
        ({"y": Y[:, :, None]}, "y has 3 axes; it needs one, or two"),
        ({"A": A * (np.arange(N) != 4)[:, None]}, "Row 4 of A is all zero, but y is not"),
        ({"solver": "newton"}, "solver='newton' must be one of auto, em, ccd, scd, sn"),
        ({"max_iter": 0}, "max_iter == 0, must be >= 1"),
        ({"tol": -1.0}, "tol == -1.0, must be >= 0"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        poisson_regression(**{"A": A, "y": Y} | arguments)
