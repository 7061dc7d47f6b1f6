"""Draws of the Gibbs sampler: exactly those of a loop in Python, and of the right distribution."""

import numpy as np
import pytest
import scipy.sparse as sp
from nmfscale.kernels.gibbs import draw_gamma, split_counts
from scipy import stats

KEY, FIRST = 0x123456789ABCDEF0, 7


def mixed(x):
    """The finaliser of splitmix64, of Python's integers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def split(X, L, U, n_threads=1):
    parts = (each.astype(np.int64) for each in (X.indptr, X.indices, X.data))
    of_rows, of_columns = np.full(L.shape, 9), np.zeros(U.shape, np.int64)
    split_counts(*parts, L, U, KEY, FIRST, of_rows, of_columns, n_threads=n_threads)
    return of_rows, of_columns


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = sp.csr_array(rng.poisson(0.8, (40, 30)))
    return X, rng.gamma(0.5, size=(40, 3)), rng.gamma(1.0, size=(30, 3))


def test_counts_are_split_as_by_a_loop(problem):
    X, L, U = problem
    of_rows, of_columns = np.zeros(L.shape, int), np.zeros(U.shape, int)
    step = 0x9E3779B97F4A7C15
    for i, j in zip(*X.nonzero(), strict=True):
        cumulative = np.cumsum(L[i] * U[j])
        state = mixed((KEY + mixed(((FIRST + int(i)) * 30 + int(j) + step) % 2**64)) % 2**64)
        for _ in range(X[i, j]):
            state = (state + step) % 2**64
            k = np.searchsorted(cumulative, ((mixed(state) >> 11) + 1) / 2**53 * cumulative[-1])
            of_rows[i, k] += 1
            of_columns[j, k] += 1
    found = split(X, L, U)
    assert (found[0] == of_rows).all() and (found[1] == of_columns).all()


def test_a_split_depends_on_no_order_and_no_threads(problem):
    X, L, U = problem
    turned = X[:, ::-1].tocoo()
    other = sp.csr_array((turned.data, (turned.row, 29 - turned.col)), X.shape)
    other.has_sorted_indices = False
    lists = other.tolil()
    indices = np.concatenate([row[::-1] for row in lists.rows])
    data = np.concatenate([row[::-1] for row in lists.data])
    other = sp.csr_array((data, indices.astype(int), X.indptr), X.shape)
    expected = split(X, L, U)
    for found in (split(other, L, U), split(X, L, U, 3), split(X, L, U, 40)):
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    assert (expected[0].sum(axis=1) == X.sum(axis=1)).all()
    assert (expected[1].sum(axis=1) == X.sum(axis=0)).all()


def test_shares_of_a_split_are_those_of_the_components():
    L, U = np.array([[2.0, 1.0, 0.0]]), np.array([[1.0, 3.0, 5.0], [1.0, 0.0, 1.0]])
    _, found = split(sp.csr_array([[100_000, 10]]), L, U)
    assert found[1].tolist() == [10, 0, 0] and found[0, 2] == 0
    assert stats.binomtest(int(found[0, 0]), 100_000, 0.4).pvalue > 0.01


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 3.5, 1e4])
def test_gamma_numbers(shape):
    shapes, found, other = np.full(20_000, shape), np.empty(20_000), np.empty(20_000)
    draw_gamma(shapes, found, KEY, n_threads=1)
    draw_gamma(shapes, other, KEY, n_threads=2)
    assert (found == other).all() and found.min() > 0
    assert stats.kstest(found, stats.gamma(shape).cdf).pvalue > 0.01


def test_arrays_that_do_not_match_are_refused(problem):
    X, L, U = problem
    with pytest.raises(ValueError, match="shapes of the arrays do not match"):
        split(X, L[:-1], U)
    with pytest.raises(ValueError, match="a column does not exist"):
        split(X, L, U[:5])
    with pytest.raises(ValueError, match="shapes has 3 entries, out 2"):
        draw_gamma(np.ones(3), np.ones(2), KEY, n_threads=1)
