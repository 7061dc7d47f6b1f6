"""Products of dense matrices of doubles, with the same bits on every processor.

BLAS chooses its algorithms by processor, so its last bits differ between machines. Here every sum
has a fixed order, and multiplications and additions are rounded separately. Products are blocked,
and fast for tall matrices.
"""
from cython.parallel cimport prange, threadid
from libc.stdint cimport int32_t, int64_t

import numpy as np

from .levels cimport kernels_in_use
from .operands cimport address
from .slices cimport GROUP, WIDE, level_kernels

cdef enum:
    ROWS = 256                   # rows of a product that a thread computes at a time
    BLOCK = 2048                 # rows of a cross-product whose sum is one term of the whole
    PIECE = 8192                 # numbers that a thread converts at a time

ctypedef fused real:
    float
    double

ctypedef fused to_real:
    float
    double

ctypedef fused from_real:
    float
    double


def padded(X):
    """Return X as doubles in C order, with zeros in further columns up to a multiple of 8."""
    X = np.asarray(X)
    n_columns = (X.shape[1] + WIDE - 1) // WIDE * WIDE
    if n_columns == X.shape[1]:
        return np.ascontiguousarray(X, np.float64)
    out = aligned(X.shape[0], n_columns)
    out[:, : X.shape[1]] = X
    out[:, X.shape[1]:] = 0
    return out


cdef aligned(Py_ssize_t n, Py_ssize_t m):
    """Return an array (n, m), not filled in, that begins at the beginning of a cache line."""
    memory = np.empty(n * m + WIDE)
    cdef double[::1] view = memory
    cdef size_t beyond = <size_t>&view[0] // sizeof(double) % WIDE
    return memory[WIDE - beyond : WIDE - beyond + n * m].reshape(n, m)


def product(A, B, *, int n_threads=1):
    """Return A B for A (n, k) and B (k, m); each sum is in the order of k."""
    cdef const double[:, ::1] a = np.ascontiguousarray(A, np.float64)
    cdef const double[:, ::1] b = padded(B)
    cdef Py_ssize_t i, n = a.shape[0], k = a.shape[1], m = b.shape[1]
    cdef const level_kernels *kernels = kernels_in_use()
    if k != b.shape[0]:
        raise ValueError(f"product of matrices of shapes {np.shape(A)} and {np.shape(B)}")
    if not k:
        return np.zeros((n, np.shape(B)[1]))
    found = aligned(n, m)
    cdef double[:, ::1] out = found
    if n and m:
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
    if not index.shape[0]:
        return np.zeros((n, n_columns))
    found = aligned(n, m)
    cdef double[:, ::1] out = found
    if m:
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


def matvec(values, weights, double[::1] out, *, int n_threads):
    """Write sum_k values[i, k] weights[k] of every row, added in its type, to `out` (n,)."""
    cdef Py_ssize_t i, n = len(values), width = len(weights)
    if values.dtype not in ("float32", "float64"):
        raise ValueError(f"values: expected float32 or float64, got {values.dtype}")
    if len(out) != n:
        raise ValueError(f"out has {len(out)} entries, but values {n} rows")
    cdef bint single = values.dtype == "float32"
    cdef const char *a = <const char *>address(values, values.dtype, (n, width), "values")
    cdef const char *b = <const char *>address(weights, values.dtype, (width,), "weights")
    for i in prange(n, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=n * width > 1 << 16):
        if single:
            out[i] = dot[float](<const float *>a + i * width, <const float *>b, width)
        else:
            out[i] = dot[double](<const double *>a + i * width, <const double *>b, width)


def copyto(out, values, *, int n_threads=1):
    """Copy values to `out`, of the same shape, and convert them to its type."""
    if values.shape != out.shape:
        raise ValueError(f"out has the shape {out.shape}, but values {values.shape}")
    if out.dtype == "float64":
        if values.dtype == "float64":
            copy_all[double, double](out.reshape(-1), values.reshape(-1), n_threads)
        else:
            copy_all[double, float](out.reshape(-1), values.reshape(-1), n_threads)
    elif values.dtype == "float64":
        copy_all[float, double](out.reshape(-1), values.reshape(-1), n_threads)
    else:
        copy_all[float, float](out.reshape(-1), values.reshape(-1), n_threads)


cdef copy_all(to_real[::1] out, const from_real[::1] values, int n_threads):
    cdef Py_ssize_t i, piece, n = values.shape[0]
    for piece in prange((n + PIECE - 1) // PIECE, nogil=True, schedule="static",
                        num_threads=n_threads, use_threads_if=n > 1 << 16):
        for i in range(piece * PIECE, min(n, (piece + 1) * PIECE)):
            out[i] = <to_real>values[i]


cdef real dot(const real *a, const real *b, Py_ssize_t n) noexcept nogil:
    """Return sum a[k] b[k] with eight sums side by side, in the order of NumPy's sum of a row."""
    cdef real[8] sums
    cdef real total = 0
    cdef Py_ssize_t k, i, half
    if n > 128:
        half = n // 16 * 8
        return dot[real](a, b, half) + dot[real](a + half, b + half, n - half)
    if n >= 8:
        for i in range(8):
            sums[i] = a[i] * b[i]
        for k in range(8, n - 7, 8):
            for i in range(8):
                sums[i] += a[k + i] * b[k + i]
        total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + (
            (sums[4] + sums[5]) + (sums[6] + sums[7]))
    for k in range(n // 8 * 8, n):
        total += a[k] * b[k]
    return total


def nearest(points, centers, *, int n_threads=1):
    """Return the number of the nearest centre (k, d) of each point (n, d), the first of several."""
    cdef const double[:, ::1] x = np.ascontiguousarray(points, np.float64)
    cdef Py_ssize_t i, n = x.shape[0], d = x.shape[1], k = len(centers)
    cdef Py_ssize_t width = (k + GROUP - 1) // GROUP * GROUP
    cdef const level_kernels *kernels = kernels_in_use()
    if np.shape(centers)[1] != d or not k:
        raise ValueError(f"points of shape {np.shape(points)}, centres of {np.shape(centers)}")
    cdef double[:, ::1] twice = np.zeros((d, width))
    cdef double[::1] square = np.full(width, np.inf)
    np.multiply(np.transpose(centers), -2.0, out=np.asarray(twice)[:, :k])
    np.sum(np.asarray(centers, np.float64) ** 2, axis=1, out=np.asarray(square)[:k])
    found = np.zeros(n, np.int32)
    cdef int32_t[::1] out = found
    cdef double[:, :, ::1] room = np.empty((n_threads, d, WIDE))
    if n and d:
        for i in prange((n + ROWS - 1) // ROWS, nogil=True, schedule="static",
                        num_threads=n_threads, use_threads_if=n * d * k > 1 << 18):
            kernels.nearest(&x[i * ROWS, 0], &twice[0, 0], &square[0], min(ROWS, n - i * ROWS), d,
                            width, &room[threadid(), 0, 0], &out[i * ROWS])
    return found


def closer(points, squares, weights, closest, candidates, *, int n_threads=1):
    """Return squared distances (n, c) from the nearest chosen point if a candidate is chosen, too.

    Also return their weighted sums (c,), which are in the order of the points. `points` (n, d) have
    the `squares` and the `weights` (n,). `closest` (n,) are squared distances from the points that
    were chosen before; `candidates` (c,) are numbers of points.
    """
    cdef const double[:, ::1] x = np.ascontiguousarray(points, np.float64)
    cdef const double[::1] square = squares
    cdef const double[::1] weight = weights
    cdef const double[::1] least = closest
    cdef const double[:, ::1] twice = padded(-2.0 * points[candidates].T)
    cdef Py_ssize_t i, n = x.shape[0], d = x.shape[1], m = twice.shape[1], n_found = len(candidates)
    cdef const level_kernels *kernels = kernels_in_use()
    cdef double[::1] others = np.zeros(m)
    np.asarray(others)[:n_found] = squares[candidates]
    left, sums = aligned(n, m), np.zeros(m)
    cdef double[:, ::1] out = left
    cdef double[::1] total = sums
    for i in prange((n + ROWS - 1) // ROWS, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=n * d * m > 1 << 18):
        kernels.closer(&x[i * ROWS, 0], &square[i * ROWS], &least[i * ROWS], &twice[0, 0],
                       &others[0], min(ROWS, n - i * ROWS), d, m, &out[i * ROWS, 0])
    left[candidates, np.arange(n_found)] = 0
    kernels.cross(&weight[0], &out[0, 0], n, 1, m, &total[0])
    return left[:, :n_found], sums[:n_found]


def sums_of_groups(X, labels, Py_ssize_t n_groups):
    """Return the sums (n_groups, d) of the rows of X (n, d) with equal labels, in their order."""
    cdef const double[:, ::1] x = np.ascontiguousarray(X, np.float64)
    cdef const int32_t[::1] label = np.ascontiguousarray(labels, np.int32)
    cdef Py_ssize_t i, j, n = x.shape[0], d = x.shape[1]
    if label.shape[0] != n or (n and not 0 <= np.min(labels) <= np.max(labels) < n_groups):
        raise ValueError(f"labels of {n} rows must be from 0 to {n_groups - 1}")
    found = np.zeros((n_groups, d))
    cdef double[:, ::1] out = found
    cdef double *row
    if d and n:
        with nogil:
            for i in range(n):
                row = &out[label[i], 0]
                for j in range(d):
                    row[j] += x[i, j]
    return found
