"""Our linear algebra and special functions, held to LAPACK and SciPy."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from nmfscale.kernels.resample import gamma_draws
from small_fits import at_level

from nmfscale import kernels
from nmfscale.kernels import decompositions, dense, functions
from nmfscale.kernels.targets import Targets

EXAMPLES = settings(max_examples=25, deadline=None)
sizes = st.integers(1, 24)


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _sum_in_order(A, B):
    """Return A B; terms are added one by one, each rounded."""
    out = np.zeros((A.shape[0], B.shape[1]))
    for k in range(A.shape[1]):
        out += A[:, k, None] * B[k]
    return out


@pytest.mark.parametrize("level", kernels.available_levels())
def test_products_have_the_same_bits_at_every_level_and_with_threads(level):
    A, B, C = _normal(0, 2100, 21), _normal(1, 21, 19), _normal(2, 2100, 13)
    X = sp.random(2100, 21, 0.3, format="csr", random_state=0)
    X.data[:] = np.round(9 * X.data)
    whole = np.zeros((21, 13))
    for first in (0, 2048):  # the rows of a block are added first
        here = slice(first, first + 2048)
        whole += _sum_in_order(A[here].T, C[here])
    with at_level(level):
        for n_threads in (1, 3):
            how = {"n_threads": n_threads}
            np.testing.assert_array_equal(dense.product(A, B, **how), _sum_in_order(A, B))
            np.testing.assert_array_equal(dense.cross(A, C, **how), whole)
            np.testing.assert_array_equal(
                dense.of_sparse(X, B, **how), _sum_in_order(X.toarray(), B)
            )


@EXAMPLES
@given(sizes, sizes, sizes, st.integers(1, 3))
def test_products(n, k, m, stack):
    A, B = _normal(n, stack, n, k), _normal(m, stack, k, m)
    np.testing.assert_allclose(dense.products(A, B), A @ B, atol=1e-13)
    np.testing.assert_allclose(dense.products(A[0], B), A[0] @ B, atol=1e-13)
    np.testing.assert_allclose(dense.product(A[0], B[0]), A[0] @ B[0], atol=1e-13)
    np.testing.assert_allclose(dense.cross(A[0]), A[0].T @ A[0], atol=1e-13)
    rows, columns = np.arange(n), np.arange(n) % m
    expected = (A[0] * B[0].T[columns]).sum(axis=1)
    np.testing.assert_allclose(dense.dots(A[0], rows, B[0].T, columns), expected, atol=1e-13)


def test_products_of_nothing_and_of_shapes_that_do_not_fit():
    assert dense.product(np.ones((0, 3)), np.ones((3, 2))).shape == (0, 2)
    np.testing.assert_array_equal(dense.product(np.ones((2, 0)), np.ones((0, 3))), np.zeros((2, 3)))
    np.testing.assert_array_equal(dense.cross(np.ones((0, 2))), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(2, 3\)"):
        dense.product(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="from 0 to 1"):
        dense.dots(np.ones((2, 3)), [2], np.ones((2, 3)), [0])
    with pytest.raises(ValueError, match="csc"):
        dense.of_sparse(sp.eye(3, format="csc"), np.ones((3, 2)))


@pytest.mark.parametrize("to", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copyto_is_numpys(dtype, to):
    values = np.random.default_rng(0).gamma(0.1, size=(700, 104)).astype(dtype)
    out, expected = np.empty(values.shape, to), np.empty(values.shape, to)
    dense.copyto(out, values, n_threads=2)
    np.copyto(expected, values, casting="same_kind")
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(ValueError, match=r"out has the shape \(699, 104\)"):
        dense.copyto(out[:-1], values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matvec_has_the_bits_of_numpy(dtype):
    rng = np.random.default_rng(0)
    for width in (1, 7, 8, 20, 128, 129, 301):
        values, weights = rng.gamma(0.3, size=(50, width)), rng.gamma(1.0, size=width)
        values, weights, out = values.astype(dtype), weights.astype(dtype), np.empty(50)
        dense.matvec(values, weights, out, n_threads=2)
        np.testing.assert_array_equal(out, (values * weights).sum(axis=1))
    with pytest.raises(ValueError, match="out has 49 entries, but values 50 rows"):
        dense.matvec(values, weights, out[:49], n_threads=1)


@EXAMPLES
@given(st.integers(1, 30), st.integers(1, 30), st.integers(-6, 6))
def test_eigenvalues_of_any_rank_and_scale(k, rank, scale):
    A = _normal(k, 2, k, rank) * 10.0**scale
    S = A @ A.transpose(0, 2, 1)
    values, vectors = decompositions.eigh(S)
    size = np.abs(S).max()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(S), atol=1e-13 * k * size)
    np.testing.assert_allclose(
        vectors.transpose(0, 2, 1) @ vectors, np.broadcast_to(np.eye(k), S.shape), atol=1e-12
    )
    np.testing.assert_allclose(
        vectors * values[:, None] @ vectors.transpose(0, 2, 1), S, atol=1e-12 * size
    )
    one, _ = decompositions.eigh(S[0])
    np.testing.assert_array_equal(one, values[0])


@EXAMPLES
@given(st.integers(1, 30), st.integers(1, 5))
def test_linear_equations(k, m):
    A, B = _normal(k, 3, k, k), _normal(m, 3, k, m)
    inverse, determinant = decompositions.inverse(A)
    np.testing.assert_allclose(A @ decompositions.solve(A, B), B, atol=1e-8)
    np.testing.assert_allclose(A @ inverse, np.broadcast_to(np.eye(k), A.shape), atol=1e-8)
    np.testing.assert_allclose(determinant, np.linalg.det(A), rtol=1e-9)
    A[1, :, 0] = 0
    inverse, determinant = decompositions.inverse(A)
    assert determinant[1] == 0
    assert np.isnan(inverse[1]).all()
    assert np.isfinite(inverse[[0, 2]]).all()
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        decompositions.solve(A, B)


@EXAMPLES
@given(st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_qr_decomposition(n, k, pivoting):
    A, r = _normal(n, n, k), min(n, k)
    Q, R, order = decompositions.qr(A, pivoting=pivoting)
    np.testing.assert_allclose(Q @ R, A[:, order], atol=1e-12)
    np.testing.assert_allclose(Q.T @ Q, np.eye(r), atol=1e-12)
    np.testing.assert_array_equal(R, np.triu(R))
    assert (R.diagonal() >= 0).all()
    expected = scipy.linalg.qr(A, mode="r", pivoting=True)[1] if pivoting else np.arange(k)
    np.testing.assert_array_equal(order[:r], expected[:r])


def test_orthonormal_basis_leaves_out_dependent_columns():
    X = _normal(0, 50, 5) * [1e5, 1, 1e-3, 1, 1]
    X[:, 3] = X[:, 0] - X[:, 1]
    found = X @ decompositions.orthonormal_basis(X.T @ X)
    np.testing.assert_allclose(found.T @ found, np.diag([1, 1, 1, 0, 1]), atol=1e-6)


@pytest.mark.parametrize("level", kernels.available_levels())
def test_distances_of_k_means(level):
    points, centers, weights = _normal(0, 701, 3), _normal(1, 11, 3), np.arange(701) % 5 + 0.1
    squared = ((points[:, None] - centers) ** 2).sum(axis=2)
    squares, candidates = (points * points).sum(axis=1), np.array([5, 700, 5])
    both = _sum_in_order(points, -2 * points[candidates].T)
    both += squares[:, None] + squares[candidates]
    both[candidates, np.arange(3)] = 0
    expected = np.minimum(squares[:, None], np.maximum(both, 0))
    with at_level(level):
        for n_threads in (1, 3):
            how = {"n_threads": n_threads}
            labels = dense.nearest(points, centers, **how)
            np.testing.assert_array_equal(labels, squared.argmin(axis=1))
            left, sums = dense.closer(points, squares, weights, squares, candidates, **how)
            np.testing.assert_array_equal(left, expected)
            np.testing.assert_array_equal(sums, _sum_in_order(weights[None], expected)[0])
        equal = dense.nearest(np.ones((4, 1)), np.ones((3, 1)))
    np.testing.assert_array_equal(equal, np.zeros(4))  # the first of several
    totals = np.zeros((12, 3))
    np.add.at(totals, labels, points)
    np.testing.assert_array_equal(dense.sums_of_groups(points, labels, 12), totals)
    with pytest.raises(ValueError, match="from 0 to 5"):
        dense.sums_of_groups(points, labels, 6)


x = np.concatenate([10.0 ** np.linspace(-8, 8, 4001), [1, 2, 1e-300, 1e300]])


@pytest.mark.parametrize(
    ("name", "exact", "x"),
    [
        ("log", np.log, x), ("exp", np.exp, np.linspace(-700, 700, 4001)),
        ("log1p", np.log1p, x[:4001]), ("log1p", np.log1p, -np.linspace(0, 0.99, 4001)),
        ("cbrt", np.cbrt, np.append(x, 0)), ("digamma", scipy.special.psi, x),
        ("trigamma", lambda x: scipy.special.polygamma(1, x), x[:4001]),
        ("log_gamma", scipy.special.gammaln, x[:4001]),
    ],
)  # fmt: skip
def test_special_functions(name, exact, x):
    expected = exact(x)
    found = getattr(functions, name)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
    n = len(x) // 3 * 3
    np.testing.assert_array_equal(getattr(functions, name)(x[:n].reshape(3, -1)).ravel(), found[:n])
    assert getattr(functions, name)(float(x[7])) == found[7]


def test_special_functions_at_limits():
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(
            functions.log([0, 1, np.inf, np.nan, -1]), [-np.inf, 0, np.inf, np.nan, np.nan]
        )
        np.testing.assert_array_equal(
            functions.exp([-np.inf, -1000, 0, 1000, np.inf, np.nan]),
            [0, 0, 1, np.inf, np.inf, np.nan],
        )
    np.testing.assert_array_equal(functions.log_gamma([1.0, 2.0]), [0, 0])
    np.testing.assert_array_equal(functions.xlogy([0, 2, 0], [0, 1, 5]), [0, 0, 0])
    angles = np.linspace(0, np.pi / 2, 1001)
    sine, cosine = functions.sine_and_cosine(angles)
    np.testing.assert_allclose(sine, np.sin(angles), atol=2e-16)
    np.testing.assert_allclose(cosine, np.cos(angles), atol=2e-16)


def test_gamma_numbers_are_those_of_numpy():
    for n in (1, 2, 999):
        rng, theirs = np.random.RandomState(3), np.random.RandomState(3)
        for shape in (100.0, 1.5):  # the second draws begin with the other half of a pair
            np.testing.assert_allclose(
                gamma_draws(shape, rng, n), theirs.gamma(shape, size=n), rtol=1e-14
            )
        assert rng.normal() == pytest.approx(theirs.normal(), rel=1e-14)


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize(("n", "T", "K"), [(1, 1, 1), (33, 150, 5), (70, 21, 8), (9, 40, 11)])
def test_sums_over_targets(n, T, K, divides):
    rng = np.random.default_rng(K)
    S, B, w = rng.uniform(size=(n, K)), rng.uniform(size=(T, K)), rng.uniform(size=n)
    Y = rng.uniform(size=(n, T)) * (rng.uniform(size=(n, T)) > 0.3)
    S[-1] = 0  # predictions of 0 count as 1e-30
    R = Y / np.maximum(S @ B.T, 1e-30) if divides else Y
    each = Y * (np.log(np.maximum(R, 1e-30)) - 1) if divides else Y * Y
    found = {}
    for level in kernels.available_levels():
        with at_level(level):
            one, many = (
                Targets(Y, S, B, w, divides=divides, n_threads=n_threads) for n_threads in (1, 3)
            )
            found[level] = *one.sums(), one.products()
            for array, expected in zip((*many.sums(), many.products()), found[level], strict=True):
                np.testing.assert_array_equal(array, expected)
        sums, loss, products = found[level]
        np.testing.assert_allclose(sums, R.T @ (w[:, None] * S), rtol=1e-12)
        np.testing.assert_allclose(products, R @ B, rtol=1e-12)
        np.testing.assert_allclose(loss, (w[:, None] * each).sum(), rtol=1e-11)
    fused = [values for level, values in found.items() if level != "baseline"]
    for values in fused[1:]:
        for array, expected in zip(values, fused[0], strict=True):
            np.testing.assert_array_equal(array, expected)


def test_targets_that_do_not_fit_are_refused():
    Y, S, B, w = np.ones((4, 3)), np.ones((4, 2)), np.ones((3, 2)), np.ones(4)
    for wrong in ((Y, S[:3], B, w), (Y, S, B[:2], w), (Y, S, B, w[:3]), (Y[:0], S[:0], B, w[:0])):
        with pytest.raises(ValueError, match="targets"):
            Targets(*wrong, divides=False, n_threads=1)
