"""Decompositions of small dense matrices in float64, with the same bits on every processor.

They take the place of LAPACK. Arguments are converted to float64 and are not changed. Where a stack
of matrices (n, k, k) is allowed, results have a first axis of n. No result depends on `n_threads`.
"""

from typing import Any

from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

def orthonormal_basis(gram: ArrayLike) -> Array:
    """Return T (k, k) such that the columns of X T are orthonormal, from `gram`, which is X' X.

    T is the inverse of the Cholesky factor. Columns that depend on earlier ones become zero.
    """

def eigh(matrices: ArrayLike, *, n_threads: int = 1) -> tuple[Array, Array]:
    """Return eigenvalues (k,), in increasing order, and eigenvectors (k, k) in columns.

    The matrix (k, k), or each matrix of a stack, is symmetric. The largest entry of each
    eigenvector is positive.
    """

def solve(A: ArrayLike, B: ArrayLike, *, n_threads: int = 1) -> Array:
    """Return X (k, m) with A X = B for square matrices A (k, k) and B (k, m), or stacks of them.

    LU decomposition with partial pivoting. Raise ``numpy.linalg.LinAlgError`` if a pivot is 0.
    """

def inverse(A: ArrayLike, *, n_threads: int = 1) -> tuple[Array, Any]:
    """Return the inverse (k, k) and the determinant of a matrix, or of each matrix of a stack.

    The inverse of a matrix that has a pivot of 0, and so the determinant 0, is NaN.
    """

def qr(A: ArrayLike, *, pivoting: bool = False) -> tuple[Array, Array, Array]:
    """Return Q (n, r), R (r, k) and the order of the columns: A[:, order] = Q R, r = min(n, k).

    With `pivoting`, the next column is the one of which most is left without the earlier ones, the
    first of several; otherwise the order is that of A. The diagonal of R is not negative.
    """
