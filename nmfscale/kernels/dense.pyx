"""Linear algebra with small dense matrices of doubles, with the same bits on every processor.

LAPACK and BLAS choose their algorithms by processor, so their last bits differ between machines.
Here every sum has a fixed order, multiplications and additions are rounded separately, and only
operations that IEEE 754 rounds correctly occur: + - * / and square roots. The algorithms are those
of textbooks, for matrices of a few hundred columns: Householder QR decomposition, LU decomposition
with partial pivoting, Cholesky decomposition, Jacobi's eigenvalue method (Golub and Van Loan,
Matrix Computations, 4th edition, sections 5.2, 3.4, 4.2 and 8.5). Products are the exception: they
are blocked, and fast for tall matrices.
"""
from cython.parallel cimport prange, threadid
from libc.math cimport fabs, sqrt
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

import numpy as np

from .levels cimport kernels_in_use
from .slices cimport WIDE, level_kernels

cdef enum:
    ROWS = 256                   # rows of a product that a thread computes at a time
    BLOCK = 2048                 # rows of a cross-product whose sum is one term of the whole
    SWEEPS = 60                  # Jacobi's method needs fewer than ten

# A column depends on earlier ones if less than this share of its square is left without them.
cdef double DEPENDENT = 1e-13


def padded(X):
    """Return X as doubles in C order, with zeros in further columns up to a multiple of 8."""
    X = np.asarray(X)
    n_columns = (X.shape[1] + WIDE - 1) // WIDE * WIDE
    if n_columns == X.shape[1]:
        return np.ascontiguousarray(X, np.float64)
    out = np.zeros((X.shape[0], n_columns))
    out[:, : X.shape[1]] = X
    return out


def product(A, B, *, int n_threads=1):
    """Return A B for A (n, k) and B (k, m); each sum is in the order of k."""
    cdef const double[:, ::1] a = np.ascontiguousarray(A, np.float64)
    cdef const double[:, ::1] b = padded(B)
    cdef Py_ssize_t i, n = a.shape[0], k = a.shape[1], m = b.shape[1]
    cdef const level_kernels *kernels = kernels_in_use()
    if k != b.shape[0]:
        raise ValueError(f"product of matrices of shapes {np.shape(A)} and {np.shape(B)}")
    found = np.zeros((n, m))
    cdef double[:, ::1] out = found
    if n and k and m:
        for i in prange((n + ROWS - 1) // ROWS, nogil=True, schedule="static",
                        num_threads=n_threads, use_threads_if=n * k * m > 1 << 18):
            kernels.product(&a[i * ROWS, 0], &b[0, 0], min(ROWS, n - i * ROWS), k, m,
                            &out[i * ROWS, 0])
    return found if m == np.shape(B)[1] else np.ascontiguousarray(found[:, : np.shape(B)[1]])


def products(A, B, *, int n_threads=1):
    """Return A_i B_i for stacks of small matrices A (n, a, k) and B (n, k, b).

    One of them may be a single matrix, for all i. Each sum is in the order of k.
    """
    cdef const double[:, :, ::1] a = np.array(A, np.float64, order="C", ndmin=3)
    cdef const double[:, :, ::1] b = np.array(B, np.float64, order="C", ndmin=3)
    cdef Py_ssize_t i, n = max(a.shape[0], b.shape[0]), rows = a.shape[1], k = a.shape[2]
    cdef Py_ssize_t m = b.shape[2], next_a = a.shape[0] > 1, next_b = b.shape[0] > 1
    if b.shape[1] != k or not (a.shape[0] == n or np.ndim(A) == 2) or not (
            b.shape[0] == n or np.ndim(B) == 2):
        raise ValueError(f"products of matrices of shapes {np.shape(A)} and {np.shape(B)}")
    found = np.zeros((n, rows, m))
    cdef double[:, :, ::1] out = found
    if rows and k and m:
        for i in prange(n, nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=n * rows * k * m > 1 << 18):
            small_product(&a[i * next_a, 0, 0], &b[i * next_b, 0, 0], rows, k, m, &out[i, 0, 0])
    return found


cdef void small_product(const double *a, const double *b, Py_ssize_t n, Py_ssize_t k,
                        Py_ssize_t m, double *out) noexcept nogil:
    cdef Py_ssize_t i, c, j
    for i in range(n):
        for c in range(k):
            for j in range(m):
                out[i * m + j] += a[i * k + c] * b[c * m + j]


def cross(A, B=None, *, int n_threads=1):
    """Return A' B for A (n, k) and B (n, m), which is A by default.

    Sums of 2048 rows are in the order of the rows, and are added in this order.
    """
    cdef const double[:, ::1] a = np.ascontiguousarray(A, np.float64)
    cdef const double[:, ::1] b = padded(A if B is None else B)
    cdef Py_ssize_t i, n = a.shape[0], k = a.shape[1], m = b.shape[1], width
    cdef Py_ssize_t n_blocks = (n + BLOCK - 1) // BLOCK, first, last, at_once = 4 * n_threads
    cdef const level_kernels *kernels = kernels_in_use()
    width = m if B is None else np.shape(B)[1]
    if n != b.shape[0]:
        raise ValueError(f"cross-product of matrices of shapes {np.shape(A)} and {np.shape(B)}")
    found = np.zeros((k, m))
    if B is None:
        width = k
    if not (n and k and m):
        return found[:, :width]
    sums = np.empty((min(at_once, n_blocks), k, m))
    cdef double[:, :, ::1] out = sums
    for first in range(0, n_blocks, at_once):
        last = min(first + at_once, n_blocks)
        for i in prange(last - first, nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=n * k * m > 1 << 18):
            kernels.cross(&a[(first + i) * BLOCK, 0], &b[(first + i) * BLOCK, 0],
                          min(BLOCK, n - (first + i) * BLOCK), k, m, &out[i, 0, 0])
        for i in range(last - first):
            found += sums[i]
    return np.ascontiguousarray(found[:, :width])


def of_sparse(X, B, *, int n_threads=1):
    """Return X B of compressed sparse rows X (n, k), a matrix of SciPy, and B (k, m).

    Each sum is in the order in which a row's entries are stored.
    """
    cdef const double[:, ::1] b = padded(B)
    cdef const int64_t[::1] indptr = np.ascontiguousarray(X.indptr, np.int64)
    cdef const int32_t[::1] index = np.ascontiguousarray(X.indices, np.int32)
    cdef const double[::1] count = np.ascontiguousarray(X.data, np.float64)
    cdef Py_ssize_t i, n = indptr.shape[0] - 1, m = b.shape[1], n_columns = np.shape(B)[1]
    cdef const level_kernels *kernels = kernels_in_use()
    if X.format != "csr" or X.shape[1] != b.shape[0]:
        raise ValueError(f"product of a {X.format} matrix {X.shape} and a matrix {np.shape(B)}")
    found = np.zeros((n, m))
    cdef double[:, ::1] out = found
    if index.shape[0] and m:
        for i in prange(n, nogil=True, schedule="dynamic", chunksize=64, num_threads=n_threads,
                        use_threads_if=index.shape[0] * m > 1 << 18):
            kernels.of_sparse(&index[0] + indptr[i], &count[0] + indptr[i],
                              indptr[i + 1] - indptr[i], &b[0, 0], m, &out[i, 0])
    return found if m == n_columns else np.ascontiguousarray(found[:, :n_columns])


def dots(A, rows, B, columns, *, int n_threads=1):
    """Return ``sum_k a_ik b_jk`` for pairs of a row i of A (n, K) and a row j of B (m, K)."""
    cdef const double[:, ::1] a = np.ascontiguousarray(A, np.float64)
    cdef const double[:, ::1] b = np.ascontiguousarray(B, np.float64)
    cdef const int64_t[::1] first = np.ascontiguousarray(rows, np.int64)
    cdef const int64_t[::1] second = np.ascontiguousarray(columns, np.int64)
    cdef Py_ssize_t p, k, K = a.shape[1], n = first.shape[0]
    cdef double total
    if b.shape[1] != K or second.shape[0] != n:
        raise ValueError(f"{n} rows of {np.shape(A)}, {len(second)} rows of {np.shape(B)}")
    for given, size in ((rows, a.shape[0]), (columns, b.shape[0])):
        if n and not 0 <= np.min(given) <= np.max(given) < size:
            raise ValueError(f"row numbers must be from 0 to {size - 1}")
    found = np.empty(n)
    cdef double[::1] out = found
    for p in prange(n, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=n * K > 1 << 18):
        total = 0
        for k in range(K):
            total = total + a[first[p], k] * b[second[p], k]
        out[p] = total
    return found


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
                    left[j] = squares(&x[j, p], n - p)
                    if left[j] > left[most]:
                        most = j
                if most != p:
                    order[p], order[most] = order[most], order[p]
                    for i in range(n):
                        swapped = x[p, i]
                        x[p, i] = x[most, i]
                        x[most, i] = swapped
            total = sqrt(squares(&x[p, p], n - p))
            if x[p, p] > 0:
                total = -total
            sign[p] = 1 if total >= 0 else -1
            # the reflection takes the column to `total` times the unit vector p
            for i in range(p, n):
                v[p, i] = x[p, i]
            v[p, p] = v[p, p] - total
            length = sqrt(squares(&v[p, p], n - p))
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


cdef double squares(const double *x, Py_ssize_t n) noexcept nogil:
    """Sum of squares, in four interleaved sums."""
    cdef double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0
    cdef Py_ssize_t i
    for i in range(0, n - 3, 4):
        sum0 += x[i] * x[i]
        sum1 += x[i + 1] * x[i + 1]
        sum2 += x[i + 2] * x[i + 2]
        sum3 += x[i + 3] * x[i + 3]
    for i in range(n // 4 * 4, n):
        sum0 += x[i] * x[i]
    return (sum0 + sum1) + (sum2 + sum3)


cdef void reflect(const double *v, double *x, Py_ssize_t n) noexcept nogil:
    """x -= 2 v (v . x) for a unit vector v, or v = 0."""
    cdef double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0, twice
    cdef Py_ssize_t i
    for i in range(0, n - 3, 4):
        sum0 += v[i] * x[i]
        sum1 += v[i + 1] * x[i + 1]
        sum2 += v[i + 2] * x[i + 2]
        sum3 += v[i + 3] * x[i + 3]
    for i in range(n // 4 * 4, n):
        sum0 += v[i] * x[i]
    twice = 2 * ((sum0 + sum1) + (sum2 + sum3))
    for i in range(n):
        x[i] -= twice * v[i]


def nearest(points, centers, *, int n_threads=1):
    """Return the number of the nearest centre (k, d) of each point (n, d), the first of several."""
    cdef const double[:, ::1] x = np.ascontiguousarray(points, np.float64)
    cdef const double[:, ::1] twice = padded(-2.0 * np.transpose(centers))
    cdef const double[::1] square = (np.asarray(centers, np.float64) ** 2).sum(axis=1)
    cdef Py_ssize_t i, n = x.shape[0], d = x.shape[1], k = square.shape[0], m = twice.shape[1]
    cdef const level_kernels *kernels = kernels_in_use()
    if twice.shape[0] != d or not k:
        raise ValueError(f"points of shape {np.shape(points)}, centres of {np.shape(centers)}")
    found = np.zeros(n, np.int32)
    cdef int32_t[::1] out = found
    cdef double *memory = <double *>malloc(n_threads * (ROWS * m + 16) * sizeof(double))
    if memory == NULL:
        raise MemoryError(f"no memory for distances of {ROWS} points to {k} centres")
    if n and d:
        for i in prange((n + ROWS - 1) // ROWS, nogil=True, schedule="static",
                        num_threads=n_threads, use_threads_if=n * d * m > 1 << 18):
            nearest_of_rows(kernels, &x[i * ROWS, 0], &twice[0, 0], &square[0],
                            min(ROWS, n - i * ROWS), d, m, k,
                            memory + threadid() * (ROWS * m + 16), &out[i * ROWS])
    free(memory)
    return found


cdef void nearest_of_rows(const level_kernels *kernels, const double *x, const double *twice,
                          const double *square, Py_ssize_t n, Py_ssize_t d, Py_ssize_t m,
                          Py_ssize_t k, double *room, int32_t *out) noexcept nogil:
    cdef Py_ssize_t i, c
    cdef double least, here
    kernels.product(x, twice, n, d, m, room)
    for i in range(n):
        least = room[i * m] + square[0]
        out[i] = 0
        for c in range(1, k):
            here = room[i * m + c] + square[c]
            if here < least:
                least = here
                out[i] = <int32_t>c
