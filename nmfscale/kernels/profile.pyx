"""Products with the Hessian in F of a Poisson NMF whose loadings are optimal for F.

The rows are cut into a fixed number of pieces, each with its own sums, so results do not depend on
the number of threads.
"""
from cython.parallel cimport prange
from libc.stdint cimport int32_t

import numpy as np

cdef enum:
    PIECES = 8

PROFILE_PIECES = PIECES


def profile_product(indptr, const int32_t[::1] index, const double[::1] count,
                    const double[:, ::1] L, const double[:, ::1] both,
                    const double[:, :, ::1] inverse, double[:, ::1] moved,
                    double[:, :, ::1] out, *, double least, int n_threads):
    """Compute the change of the loadings for a direction V of F, and of the gradient in F.

    Row j of `both` (m, 2 K) holds f_j, then v_j; `inverse` (n, K, K) holds ``A_i^-1``. Means mu_ij
    = l_i . f_j are raised to `least`. On input, `moved` (n, K) holds the terms that do not depend
    on counts. It becomes
    ``-A_i^-1 (moved_i - sum_j (x_ij / mu_ij v_j - x_ij / mu_ij^2 (l_i . v_j) f_j))``. Then
    ``x_ij / mu_ij^2 (l_i . v_j + moved_i . f_j) l_i - x_ij / mu_ij moved_i`` is added to row j of
    `out` (8, m, K); the caller sums over the first axis.
    """
    cdef Py_ssize_t n = moved.shape[0], K = moved.shape[1], m = out.shape[1], p
    if (len(indptr) != n + 1 or L.shape[0] != n or L.shape[1] != K or both.shape[0] != m
            or both.shape[1] != 2 * K or inverse.shape[0] != n or inverse.shape[1] != K
            or inverse.shape[2] != K or out.shape[0] != PIECES or out.shape[2] != K):
        raise ValueError(
            f"moved has shape {(n, K)}, L {(L.shape[0], L.shape[1])}, F and V "
            f"{(both.shape[0], both.shape[1])}, out {(out.shape[0], m, out.shape[2])}"
        )
    if not index.shape[0] == count.shape[0] == indptr[n]:
        raise ValueError(f"indptr ends at {indptr[n]}: there are {index.shape[0]} indices")
    if len(index) and not 0 <= np.min(index) <= np.max(index) < m:
        raise ValueError(f"indices must be from 0 to {m - 1}")
    if not K or not n or not m:
        return
    pointers = np.ascontiguousarray(indptr, np.intp)
    cuts = np.searchsorted(pointers, np.linspace(0, pointers[n], PIECES + 1)).astype(np.intp)
    cuts[0], cuts[PIECES] = 0, n
    cdef const Py_ssize_t[::1] row_at = pointers, first = cuts
    # each piece has its own scratch space, so that threads do not share cache lines
    cdef double[:, ::1] room = np.empty((PIECES, K + 3 * max(np.diff(pointers).max(), 1)))
    if not index.shape[0]:
        index, count = np.zeros(1, np.int32), np.zeros(1)
    for p in prange(PIECES, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=index.shape[0] > 1 << 14):
        product_of_piece(first[p], first[p + 1], &row_at[0], &index[0], &count[0], &L[0, 0],
                         &both[0, 0], &inverse[0, 0, 0], K, least, &room[p, K],
                         &room[p, 0], &moved[0, 0], &out[p, 0, 0])


cdef void product_of_piece(Py_ssize_t first, Py_ssize_t last, const Py_ssize_t *row_at,
                           const int32_t *index, const double *count, const double *L,
                           const double *both, const double *inverse, Py_ssize_t K, double least,
                           double *kept, double *mixed, double *moved, double *out) noexcept nogil:
    """Compute one piece; `kept` stores x / mu, x / mu^2 and l . v of each nonzero of a row."""
    cdef Py_ssize_t i, k, q, begin, end
    cdef double *keep
    cdef const double *l
    cdef const double *f
    cdef const double *v
    cdef double *y
    cdef double *move
    cdef double mu, dot, ratio, weight
    for i in range(first, last):
        l, move, begin, end, keep = L + i * K, moved + i * K, row_at[i], row_at[i + 1], kept
        for k in range(K):
            mixed[k] = move[k]
        for q in range(begin, end):
            f = both + 2 * K * index[q]
            v = f + K
            mu = dot = 0
            for k in range(K):
                mu += l[k] * f[k]
                dot += l[k] * v[k]
            mu = 1 / (mu if mu > least else least)
            ratio = count[q] * mu
            weight = ratio * mu
            keep[0], keep[1], keep[2] = ratio, weight, dot
            keep += 3
            weight = weight * dot
            for k in range(K):
                mixed[k] += weight * f[k] - ratio * v[k]
        for k in range(K):
            dot = 0
            for q in range(K):
                dot += inverse[(i * K + k) * K + q] * mixed[q]
            move[k] = -dot
        keep = kept
        for q in range(begin, end):
            f, y = both + 2 * K * index[q], out + K * index[q]
            ratio, dot = keep[0], keep[2]
            for k in range(K):
                dot += move[k] * f[k]
            weight = keep[1] * dot
            keep += 3
            for k in range(K):
                y[k] += weight * l[k] - ratio * move[k]
