"""Decompositions of small dense matrices of doubles, with the same bits on every processor.

LAPACK chooses its algorithms by processor, so its last bits differ between machines. Here every sum
has a fixed order, multiplications and additions are rounded separately, and only operations that
IEEE 754 rounds correctly occur: + - * / and square roots. The algorithms are those of textbooks,
for matrices of a few hundred columns: Householder QR decomposition, LU decomposition with partial
pivoting, Cholesky decomposition, Jacobi's eigenvalue method (Golub and Van Loan, Matrix
Computations, 4th edition, sections 5.2, 3.4, 4.2 and 8.5).
"""
from cython.parallel cimport prange
from libc.math cimport fabs, sqrt
from libc.stdint cimport int64_t

import numpy as np

from .vectors cimport dot

cdef enum:
    SWEEPS = 60                  # Jacobi's method needs fewer than ten

# A column depends on earlier ones if less than this share of its square is left without them.
cdef double DEPENDENT = 1e-13


def orthonormal_basis(gram):
    """Return T (k, k) such that the columns of X T are orthonormal, from `gram`, which is X' X.

    T is the inverse of the Cholesky factor. Columns that depend on earlier ones become zero.
    """
    cdef double[:, ::1] r = np.array(gram, np.float64, order="C")
    cdef const double[::1] square = np.diag(gram).astype(np.float64)
    cdef Py_ssize_t i, j, p, k = r.shape[0]
    found = np.zeros((k, k))
    cdef double[:, ::1] t = found
    cdef double own
    with nogil:
        # R by rows, so that loops run along rows: step i removes row i's part from the rows below
        for i in range(k):
            own = r[i, i] if r[i, i] > DEPENDENT * square[i] else 0
            for j in range(i, k):
                r[i, j] = r[i, j] / sqrt(own) if own > 0 else 0
            for p in range(i + 1, k):
                for j in range(p, k):
                    r[p, j] -= r[i, p] * r[i, j]
        # columns of the inverse of R: T R = 1, by forward substitution on the rows of T
        for i in range(k):
            if not r[i, i] > 0:
                continue
            t[i, i] = 1
            for j in range(i, k):
                if not r[j, j] > 0:
                    t[i, j] = 0
                    continue
                t[i, j] = t[i, j] / r[j, j]
                for p in range(j + 1, k):
                    t[i, p] -= t[i, j] * r[j, p]
    return found


def eigh(matrices, *, int n_threads=1):
    """Return eigenvalues (k,), in increasing order, and eigenvectors (k, k) in columns.

    The matrix (k, k), or each matrix of a stack, is symmetric. Jacobi's method rotates two rows
    and columns at a time until all entries beside the diagonal are zero in relation to it. The
    largest entry of each eigenvector is positive.
    """
    shape = np.shape(matrices)
    stack = np.array(matrices, np.float64, order="C", ndmin=3)
    if stack.ndim > 3:
        raise ValueError(f"matrices of shape {shape}: at most three dimensions are needed")
    cdef double[:, :, ::1] a = stack
    cdef Py_ssize_t i, k = a.shape[1]
    values, vectors = np.empty((a.shape[0], k)), np.zeros((a.shape[0], k, k))
    cdef double[:, ::1] w = values
    cdef double[:, :, ::1] v = vectors
    if k:
        for i in prange(a.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=a.shape[0] > 64):
            jacobi(&a[i, 0, 0], &v[i, 0, 0], &w[i, 0], k)
    order = np.argsort(values, axis=1, kind="stable")
    values = np.take_along_axis(values, order, 1)
    # rows of `vectors` are eigenvectors: rotations then run along rows
    vectors = np.take_along_axis(vectors, order[:, :, None], 1)
    if k:
        largest = np.argmax(np.abs(vectors), axis=2)
        negative = np.take_along_axis(vectors, largest[:, :, None], 2) < 0
        np.negative(vectors, out=vectors, where=negative)
    turned = np.ascontiguousarray(vectors.transpose(0, 2, 1))
    return (values, turned) if len(shape) == 3 else (values[0], turned[0])


cdef void jacobi(double *a, double *v, double *w, Py_ssize_t k) noexcept nogil:
    """Overwrite a (k, k), symmetric; write eigenvectors to the rows of v and eigenvalues to w."""
    cdef Py_ssize_t p, q, j, _sweep
    cdef double beside, theta, t, c, s, x, y
    cdef bint moved
    for p in range(k):
        v[p * k + p] = 1
    for _sweep in range(SWEEPS):
        moved = False
        for p in range(k - 1):
            for q in range(p + 1, k):
                beside = a[p * k + q]
                # an entry that does not change either eigenvalue counts as zero
                if (fabs(a[p * k + p]) + fabs(beside) / 16 == fabs(a[p * k + p])
                        and fabs(a[q * k + q]) + fabs(beside) / 16 == fabs(a[q * k + q])):
                    a[p * k + q] = a[q * k + p] = 0
                    continue
                moved = True
                theta = (a[q * k + q] - a[p * k + p]) / (2 * beside)
                # of a large theta, the square might overflow
                if fabs(theta) > 1e150:
                    t = 1 / (2 * theta)
                else:
                    t = 1 / (fabs(theta) + sqrt(theta * theta + 1))
                    if theta < 0:
                        t = -t
                c = 1 / sqrt(t * t + 1)
                s = t * c
                # rows p and q, then the same in columns by symmetry
                for j in range(k):
                    x = a[p * k + j]
                    y = a[q * k + j]
                    a[p * k + j] = c * x - s * y
                    a[q * k + j] = s * x + c * y
                x = c * a[p * k + p] - s * a[p * k + q]
                y = s * a[q * k + p] + c * a[q * k + q]
                a[p * k + p] = x
                a[q * k + q] = y
                a[p * k + q] = a[q * k + p] = 0
                for j in range(k):
                    if j != p and j != q:
                        a[j * k + p] = a[p * k + j]
                        a[j * k + q] = a[q * k + j]
                for j in range(k):
                    x = v[p * k + j]
                    y = v[q * k + j]
                    v[p * k + j] = c * x - s * y
                    v[q * k + j] = s * x + c * y
        if not moved:
            break
    for p in range(k):
        w[p] = a[p * k + p]


def solve(A, B, *, int n_threads=1):
    """Return X with A X = B for square matrices A (k, k) and B (k, m), or stacks of them.

    LU decomposition with partial pivoting. Raise ``numpy.linalg.LinAlgError`` if a pivot is 0.
    """
    found, determinants = _eliminated(A, B, n_threads)
    if not np.all(determinants):
        raise np.linalg.LinAlgError("Singular matrix")
    return found


def inverse(A, *, int n_threads=1):
    """Return the inverse and the determinant of a matrix (k, k), or of each matrix of a stack.

    The inverse of a matrix that has a pivot of 0, and so the determinant 0, is not defined: it is
    NaN.
    """
    size = np.shape(A)[np.ndim(A) - 1]
    return _eliminated(A, np.broadcast_to(np.eye(size), np.shape(A)), n_threads)


def _eliminated(A, B, int n_threads):
    """Return A^-1 B and the determinants of A."""
    both = [np.array(each, np.float64, order="C", ndmin=3) for each in (A, B)]
    found = both[1]
    cdef double[:, :, ::1] a = both[0]
    cdef double[:, :, ::1] b = found
    cdef Py_ssize_t i, k = a.shape[1], m = b.shape[2]
    if a.shape[2] != k or b.shape[1] != k or a.shape[0] != b.shape[0]:
        raise ValueError(f"matrices of shape {np.shape(A)}, right-hand sides of {np.shape(B)}")
    determinants = np.ones(a.shape[0])
    cdef double[::1] of_each = determinants
    if k and m:
        for i in prange(a.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=a.shape[0] > 64):
            of_each[i] = eliminate(&a[i, 0, 0], &b[i, 0, 0], k, m)
    found[determinants == 0] = np.nan
    return (found, determinants) if np.ndim(B) == 3 else (found[0], determinants[0])


cdef double eliminate(double *a, double *b, Py_ssize_t k, Py_ssize_t m) noexcept nogil:
    """Overwrite b (k, m) with a^-1 b; return the determinant of a (k, k)."""
    cdef Py_ssize_t p, i, j, largest
    cdef double determinant = 1, ratio, swapped
    for p in range(k):
        largest = p
        for i in range(p + 1, k):
            if fabs(a[i * k + p]) > fabs(a[largest * k + p]):
                largest = i
        if not fabs(a[largest * k + p]) > 0:
            return 0
        if largest != p:
            determinant = -determinant
            for j in range(p, k):
                swapped = a[p * k + j]
                a[p * k + j] = a[largest * k + j]
                a[largest * k + j] = swapped
            for j in range(m):
                swapped = b[p * m + j]
                b[p * m + j] = b[largest * m + j]
                b[largest * m + j] = swapped
        determinant = determinant * a[p * k + p]
        for i in range(p + 1, k):
            ratio = a[i * k + p] / a[p * k + p]
            if ratio == 0:
                continue
            for j in range(p + 1, k):
                a[i * k + j] -= ratio * a[p * k + j]
            for j in range(m):
                b[i * m + j] -= ratio * b[p * m + j]
    for p in range(k - 1, -1, -1):
        for i in range(p + 1, k):
            for j in range(m):
                b[p * m + j] -= a[p * k + i] * b[i * m + j]
        for j in range(m):
            b[p * m + j] = b[p * m + j] / a[p * k + p]
    return determinant


def qr(A, *, bint pivoting=False):
    """Return Q (n, r), R (r, k) and the order of the columns, with r = min(n, k): A[:, order] = QR.

    With `pivoting`, the next column is the one of which most is left without the earlier ones, the
    first of several; otherwise the order is that of A. The diagonal of R is not negative.
    """
    # rows of `x` are columns of A
    cdef double[:, ::1] x = np.array(np.transpose(A), np.float64, order="C")
    cdef Py_ssize_t i, j, p, most, k = x.shape[0], n = x.shape[1], r = min(n, k)
    taken = np.arange(k)
    cdef int64_t[::1] order = taken
    found, triangle = np.zeros((r, n)), np.zeros((r, k))
    cdef double[:, ::1] q = found, R = triangle
    cdef double[:, ::1] v = np.zeros((r, n))             # unit vectors of the reflections
    cdef double[::1] left = np.zeros(k), sign = np.ones(r)
    cdef double total, length, swapped
    with nogil:
        for p in range(r):
            if pivoting:
                most = p
                for j in range(p, k):
                    left[j] = dot(&x[j, p], &x[j, p], n - p)
                    if left[j] > left[most]:
                        most = j
                if most != p:
                    order[p], order[most] = order[most], order[p]
                    for i in range(n):
                        swapped = x[p, i]
                        x[p, i] = x[most, i]
                        x[most, i] = swapped
            total = sqrt(dot(&x[p, p], &x[p, p], n - p))
            if x[p, p] > 0:
                total = -total
            sign[p] = 1 if total >= 0 else -1
            # the reflection takes the column to `total` times the unit vector p
            for i in range(p, n):
                v[p, i] = x[p, i]
            v[p, p] = v[p, p] - total
            length = sqrt(dot(&v[p, p], &v[p, p], n - p))
            for i in range(p, n):
                v[p, i] = v[p, i] / length if length > 0 else 0
            for j in range(p, k):
                reflect(&v[p, p], &x[j, p], n - p)
        for j in range(k):
            for i in range(min(j + 1, r)):
                R[i, j] = sign[i] * x[j, i]
        for p in range(r):
            q[p, p] = sign[p]
            for i in range(p, -1, -1):
                reflect(&v[i, i], &q[p, i], n - i)
    return np.ascontiguousarray(found.T), triangle, taken


cdef void reflect(const double *v, double *x, Py_ssize_t n) noexcept nogil:
    """x -= 2 v (v . x) for a unit vector v, or v = 0."""
    cdef double twice = 2 * dot(v, x, n)
    cdef Py_ssize_t i
    for i in range(n):
        x[i] -= twice * v[i]
