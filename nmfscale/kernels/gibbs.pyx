"""Draws of a Gibbs sampler: counts split among components, and Gamma numbers.

Every entry has random numbers of its own (splitmix64, started by a key and the place of the entry),
so that draws depend neither on threads nor on the order in which entries are stored.
"""
from cython.parallel cimport prange
from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint64_t

import numpy as np

cdef extern from "elementary.h" nogil:
    double logarithm(double)
    double exponential(double)

cdef enum:
    MOST_THREADS = 16            # each one has counts (m, K) of its own

cdef uint64_t GOLDEN = 0x9e3779b97f4a7c15
cdef double LEAST = 1e-300


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline uint64_t started(uint64_t key, uint64_t place) noexcept nogil:
    return mixed(key + mixed(place + GOLDEN))


cdef inline double uniform(uint64_t *state) noexcept nogil:
    """Return a number above 0 and up to 1."""
    state[0] += GOLDEN
    return <double>((mixed(state[0]) >> 11) + 1) * (1.0 / 9007199254740992.0)


def split_counts(const int64_t[::1] indptr, const int64_t[::1] indices, const int64_t[::1] data,
                 const double[:, ::1] L, const double[:, ::1] U, uint64_t key, Py_ssize_t first,
                 int64_t[:, ::1] of_rows, int64_t[:, ::1] of_columns, *, int n_threads):
    """Draw the component of each single count of some rows, and add up the draws.

    A count of row i in column j is from component k with probability ``l_ik u_jk / sum_k l_ik
    u_jk``. Rows are compressed sparse rows, `first` is the number of the first one. L (n, K) and
    `of_rows` (n, K), which is overwritten, have these rows, U (m, K) and `of_columns` (m, K), which
    is added to, all columns. The time is proportional to the sum of the counts.
    """
    cdef Py_ssize_t n = L.shape[0], K = L.shape[1], m = U.shape[0]
    if indptr.shape[0] != n + 1 or U.shape[1] != K or of_rows.shape[0] != n or (
            of_rows.shape[1] != K or of_columns.shape[0] != m or of_columns.shape[1] != K):
        raise ValueError("split_counts: shapes of the arrays do not match.")
    if len(indices) and not 0 <= np.min(indices) <= np.max(indices) < m:
        raise ValueError("split_counts: a column does not exist.")
    cdef int parts = max(1, min(n_threads, MOST_THREADS)), t
    cdef int64_t[::1] cuts = np.searchsorted(
        indptr, np.linspace(0, indptr[n], parts + 1)).astype(np.int64)
    cuts[0], cuts[parts] = 0, n
    cdef int64_t[:, :, ::1] sums = np.zeros((parts, m, K), np.int64)
    cdef double[:, ::1] cumulative = np.empty((parts, K + 8))    # no cache line for two threads
    of_rows[:] = 0
    for t in prange(parts, nogil=True, num_threads=parts, schedule="static"):
        split_rows(cuts[t], cuts[t + 1], &indptr[0], indices, data, L, U, key, first, of_rows,
                   sums[t], cumulative[t])
    total = np.asarray(of_columns)
    for t in range(parts):
        total += np.asarray(sums[t])


cdef void split_rows(
    Py_ssize_t start, Py_ssize_t stop, const int64_t *indptr, const int64_t[::1] indices,
    const int64_t[::1] data, const double[:, ::1] L, const double[:, ::1] U, uint64_t key,
    Py_ssize_t first, int64_t[:, ::1] of_rows, int64_t[:, ::1] sums, double[::1] cumulative
) noexcept nogil:
    cdef Py_ssize_t i, p, j, k, K = L.shape[1]
    cdef int64_t _x
    cdef uint64_t state
    cdef double total, at
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            total = 0
            for k in range(K):
                total = total + L[i, k] * U[j, k]
                cumulative[k] = total
            state = started(key, <uint64_t>(first + i) * <uint64_t>U.shape[0] + <uint64_t>j)
            for _x in range(data[p]):
                at = uniform(&state) * total
                k = 0
                while k < K - 1 and cumulative[k] < at:
                    k = k + 1
                of_rows[i, k] += 1
                sums[j, k] += 1


def draw_gamma(const double[::1] shapes, double[::1] out, uint64_t key, *, int n_threads):
    """Draw a Gamma number of rate 1 for each shape, which is positive; at least 1e-300.

    Method of Marsaglia and Tsang (2000); with a shape below 1 the number is that of shape + 1 times
    a power of a uniform number.
    """
    cdef Py_ssize_t i, n = shapes.shape[0]
    if out.shape[0] != n:
        raise ValueError(f"shapes has {n} entries, out {out.shape[0]}")
    for i in prange(n, nogil=True, num_threads=n_threads, schedule="static"):
        out[i] = gamma_number(shapes[i], started(key, i))


cdef double gamma_number(double shape, uint64_t state) noexcept nogil:
    cdef double b = shape - 1.0 / 3.0, c, x, v, u, square
    if shape < 1:
        b = b + 1
    c = 1.0 / sqrt(9 * b)
    while True:
        x = 2.0 * uniform(&state) - 1.0
        v = 2.0 * uniform(&state) - 1.0
        square = x * x + v * v
        if square >= 1.0 or square == 0.0:
            continue
        x = x * sqrt(-2.0 * logarithm(square) / square)
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = uniform(&state)
        if logarithm(u) < 0.5 * x * x + b * (1.0 - v + logarithm(v)):
            break
    v = b * v
    if shape < 1:
        v = exponential(logarithm(v) + logarithm(uniform(&state)) / shape)
    return max(v, LEAST)
