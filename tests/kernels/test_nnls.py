"""Batched non-negative least squares beside SciPy's, one column at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import nnls

from nmfscale import kernels


def solve(A, B, n_threads=1):
    """Solutions (T, m), what they explain, and the largest violation of the conditions."""
    values, gain, kkt = np.ascontiguousarray(A.T @ B), *np.empty((2, B.shape[1]))
    kernels.nnls(A.T @ A, values, gain, kkt, n_threads=n_threads)
    return values, gain, kkt


def violation(A, B, x):
    """Largest violation of the conditions of an optimum, over the largest of each A'b."""
    b = A.T @ B
    w = b - A.T @ (A @ x)
    worst = np.where(x > 0, abs(w), w).max(axis=0)
    return worst / np.maximum(abs(b).max(axis=0), 1e-300)


@pytest.mark.parametrize("signs", ["counts", "any"])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 20), st.integers(0, 1 << 30))
def test_solutions_are_those_of_scipy(signs, T, m, seed):
    rng = np.random.default_rng(seed)
    if signs == "counts":  # of columns whose sizes are far apart
        A = rng.poisson(0.7, (30, T)) * 10.0 ** rng.integers(0, 4, T)
        B = rng.poisson(0.7, (30, m)).astype(float)
        B[:, ::5] = 0
    else:
        A, B = rng.standard_normal((30, T)), rng.standard_normal((30, m))
    x, gain, kkt = solve(A, B)
    assert (x >= 0).all()
    assert (violation(A, B, x) <= 1e-12).all()
    assert (kkt <= 1e-12 * abs(A.T @ B).max(axis=0)).all()
    expected = [nnls(A, b)[1] ** 2 for b in B.T]
    assert_allclose((B**2).sum(axis=0) - gain, expected, rtol=1e-9, atol=1e-9)
    if np.linalg.matrix_rank(A) == T:
        assert_allclose(x, np.transpose([nnls(A, b)[0] for b in B.T]), rtol=1e-7, atol=1e-9)


def test_a_column_of_zeros_gives_zeros():
    A = np.random.default_rng(0).poisson(1.0, (20, 5)).astype(float)
    x, gain, kkt = solve(A, np.zeros((20, 3)))
    assert not x.any() and not gain.any() and not kkt.any()


def test_columns_that_depend_on_each_other_are_no_trouble():
    rng = np.random.default_rng(1)
    A = rng.poisson(1.0, (20, 6)).astype(float)
    A = np.hstack([A, A[:, :3], A[:, [3]] + A[:, [4]]])
    B = rng.poisson(2.0, (20, 40)).astype(float)
    assert (violation(A, B, solve(A, B)[0]) <= 1e-12).all()


def test_solutions_are_optimal_where_coordinate_descent_is_slow():
    rng = np.random.default_rng(4)
    A = rng.standard_normal((50, 1)) + 0.02 * rng.standard_normal((50, 20))
    B = A @ rng.exponential(size=(20, 60)) + rng.standard_normal((50, 60))
    x, gain, _ = solve(A, B)
    assert (x >= 0).all() and (violation(A, B, x) <= 1e-12).all()
    expected = [nnls(A, b)[1] ** 2 for b in B.T]
    assert_allclose((B**2).sum(axis=0) - gain, expected, rtol=1e-8)


def test_a_member_that_came_in_early_goes_out():
    # the first is nearest to b, but b is made of the others
    A = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.3, 0.0, 0.0]])
    assert_allclose(solve(A, np.array([[1.0], [1.0], [0.0]]))[0], [[0], [1], [1]], atol=1e-15)


def test_threads_and_neighbours_change_no_bit():
    rng = np.random.default_rng(2)
    A, B = rng.poisson(0.5, (60, 40)).astype(float), rng.poisson(0.5, (60, 333)).astype(float)
    one = solve(A, B)
    for n_threads in (2, 4):
        for found, expected in zip(solve(A, B, n_threads), one, strict=True):
            assert_array_equal(found, expected)
    values, gain, kkt = np.ascontiguousarray((A.T @ B)[:, 100:107]), *np.empty((2, 7))
    kernels.nnls(A.T @ A, values, gain, kkt, n_threads=1)
    assert_array_equal(values, one[0][:, 100:107])


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="gram has shape"):
        kernels.nnls(np.eye(3), np.ones((2, 4)), np.empty(4), np.empty(4), n_threads=1)
