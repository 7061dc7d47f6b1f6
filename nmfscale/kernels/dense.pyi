"""Products of dense matrices in float64, with the same bits on every processor.

They take the place of BLAS, whose last bits depend on the processor. Arguments are converted to
float64 arrays in C order, and are not changed; results are float64 in C order. No result depends on
`n_threads`, and a row of a result does not depend on the other rows. Matrices whose shapes do not
fit raise a ValueError.
"""

from typing import Any

from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

def padded(X: ArrayLike) -> Array:
    """Return X (n, m) with columns of 0 up to a multiple of 8, aligned unless m is one already."""

def product(A: ArrayLike, B: ArrayLike, *, n_threads: int = 1) -> Array:
    """Return ``A @ B`` (n, m) of A (n, k) and B (k, m); each sum is in the order of k.

    Fast for tall A: expected counts of rows are ``product(L, F.T)``, of n rows at a time, so that
    the result (n, m) is small.
    """

def products(A: ArrayLike, B: ArrayLike, *, n_threads: int = 1) -> Array:
    """Return ``A[i] @ B[i]`` (n, a, b) of stacks of small matrices A (n, a, k) and B (n, k, b).

    One of them may be a single matrix, (a, k) or (k, b), for all i. Each sum is in the order of k.
    """

def cross(A: ArrayLike, B: ArrayLike | None = None, *, n_threads: int = 1) -> Array:
    """Return ``A.T @ B`` (k, m) of A (n, k) and B (n, m), by default A: a sum over rows.

    2,048 rows at a time are added in their order, and then the sums of these. So the result of a
    block differs in rounding from the sum of the results of its parts: split rows in the same way
    wherever the counts are, for example by `LANES` times a number that only the columns determine.
    """

def of_sparse(X: Any, B: ArrayLike, *, n_threads: int = 1) -> Array:
    """Return ``X @ B`` (n, m) of compressed sparse rows X (n, k), of SciPy, and B (k, m).

    Each sum is in the order in which the entries of a row are stored.
    """

def dots(
    A: ArrayLike, rows: ArrayLike, B: ArrayLike, columns: ArrayLike, *, n_threads: int = 1
) -> Array:
    """Return ``sum_k A[i, k] B[j, k]`` (p,) for p pairs of a row i of A and a row j of B.

    `rows` and `columns` (p,) are the i and j, int64. Expected counts of single entries of the
    counts are ``dots(L, i, F, j)``.
    """

def matvec(values: Array, weights: Array, out: Array, *, n_threads: int) -> None:
    """Write ``(values * weights).sum(axis=1)``, with the same bits, to `out`, float64 (n,).

    `values` (n, width) and `weights` (width,) are float32 or float64, in which sums are added.
    """

def copyto(out: Array, values: Array, *, n_threads: int = 1) -> None:
    """Copy `values` to `out`, of the same shape, as NumPy's function does, in threads.

    Both are float32 or float64 in C order; `out` is written.
    """

def nearest(points: ArrayLike, centers: ArrayLike, *, n_threads: int = 1) -> Array:
    """Return the number (n,) of the nearest of the centres (k, d) of each point (n, d).

    Of several that are equally near, it is the first.
    """

def closer(
    points: Array, squares: Array, weights: Array, closest: Array, candidates: Array, *,
    n_threads: int = 1
) -> tuple[Array, Array]:  # fmt: skip
    """Return squared distances (n, c) from the nearest chosen point if a candidate is chosen, too.

    Also return their weighted sums (c,), in the order of the points.

    Parameters
    ----------
    points : float64 array of shape (n, d)
    squares, weights : float64 arrays of shape (n,)
        Squared norms of the points, and their weights in the sums.
    closest : float64 array of shape (n,)
        Squared distances from the points that were chosen before.
    candidates : int array of shape (c,)
        Numbers of points.
    n_threads : int
        Number of threads.
    """

def sums_of_groups(X: ArrayLike, labels: ArrayLike, n_groups: int) -> Array:
    """Return the sums (n_groups, d) of the rows of X (n, d) with equal labels, in their order.

    `labels` (n,) are int32, from 0 to n_groups - 1.
    """
