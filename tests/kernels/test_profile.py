"""Products with the Hessian of a profile objective beside NumPy, sample by sample."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from nmfscale import kernels


def problem(n, m, K, seed):
    rng = np.random.default_rng(seed)
    X = sp.csr_array(rng.poisson(0.5, (n, m)).astype(float))
    L, F, V, start = (rng.gamma(1.0, size=(rows, K)) for rows in (n, m, m, n))
    L[0] = 0  # whose means are at their least
    return X, L, F, V - 1, rng.normal(size=(n, K, K)), start


def found(X, L, F, V, inverse, start, n_threads=1):
    moved, out = start.copy(), np.zeros((kernels.PROFILE_PIECES, *F.shape))
    kernels.profile_product(
        X.indptr, X.indices, X.data, L, np.hstack([F, V]), inverse, moved, out, least=0.01,
        n_threads=n_threads,
    )  # fmt: skip
    return moved, out.sum(axis=0)


@pytest.mark.parametrize(("n", "m", "K"), [(1, 1, 1), (3, 9, 2), (40, 25, 5)])
def test_products_are_those_of_numpy(n, m, K):
    X, L, F, V, inverse, start = problem(n, m, K, seed=n)
    moved, out = np.empty((n, K)), np.zeros((m, K))
    for i, x in enumerate(X.toarray()):
        mu = np.maximum(F @ L[i], 0.01)
        moved[i] = -inverse[i] @ (start[i] - V.T @ (x / mu) + F.T @ (x / mu**2 * (V @ L[i])))
        out += np.outer(x / mu**2 * (V @ L[i] + F @ moved[i]), L[i]) - np.outer(x / mu, moved[i])
    for known, expected in zip(found(X, L, F, V, inverse, start), (moved, out), strict=True):
        assert_allclose(known, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_bits_are_the_same_for_any_number_of_threads():
    given = problem(500, 100, 3, seed=0)
    assert given[0].nnz > 1 << 14  # from where threads are used
    for one, three in zip(found(*given), found(*given, n_threads=3), strict=True):
        assert_array_equal(one, three)


def test_indices_beyond_the_features_are_refused():
    X, L, F, V, inverse, start = problem(3, 9, 2, seed=0)
    with pytest.raises(ValueError, match="indices must be from 0"):
        found(X, L, F[:5], V[:5], inverse, start)
