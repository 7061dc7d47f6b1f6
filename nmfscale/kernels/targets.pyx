"""Products of dense targets, or of their ratios to predictions, with the factors of a fit.

Every sum has a fixed order, which does not depend on the number of threads: see targets.h.
"""
from cython.parallel cimport prange, threadid

import math

import numpy as np

from .levels cimport kernels_in_use
from .slices cimport LANES, WIDE, level_kernels, target_problem

cdef enum:
    COLUMNS = 128                # columns of a sum that a thread computes at a time
    ROWS = 32                    # rows of a product that a thread computes at a time


cdef class Targets:
    """Targets Y (n, T) ~ S B^T for S (n, K) and B (T, K), with weights of rows (n,).

    R is Y or, if `divides`, the ratios Y / (S B^T), of numbers of at least 1e-30.
    """

    cdef target_problem c
    cdef object keep
    cdef int n_threads
    cdef double[:, ::1] room

    def __init__(self, Y, S, B, weights, *, bint divides, int n_threads):
        cdef const double[:, ::1] y = np.ascontiguousarray(Y, np.float64)
        cdef const double[:, ::1] s = np.ascontiguousarray(S, np.float64)
        cdef const double[::1] w = np.ascontiguousarray(weights, np.float64)
        n, T = np.shape(Y)
        K = s.shape[1]
        if np.shape(S) != (n, K) or np.shape(B) != (T, K) or w.shape[0] != n or not n * T * K:
            raise ValueError(
                f"targets {(n, T)}, weights {np.shape(weights)}, factors {np.shape(S)} and "
                f"{np.shape(B)}"
            )
        self.c.n, self.c.m, self.c.K = n, T, K
        self.c.stride = (T + WIDE - 1) // WIDE * WIDE
        transposed = np.zeros((K, self.c.stride))
        transposed[:, :T] = np.transpose(B)
        cdef const double[:, ::1] b = transposed
        self.c.Y, self.c.S, self.c.B, self.c.w = &y[0, 0], &s[0, 0], &b[0, 0], &w[0]
        self.c.divides = divides
        self.keep = (y, s, b, w)
        self.n_threads = n_threads
        self.room = np.empty((n_threads, 2 * K * LANES + WIDE))

    def sums(self):
        """Return ``R^T W S`` (T, K), and the sum of w y^2 or, if `divides`, of w y (log r - 1)."""
        cdef Py_ssize_t i, n_parts = (self.c.m + COLUMNS - 1) // COLUMNS
        cdef double[:, ::1] out = np.zeros((self.c.K, self.c.stride))
        cdef double[:, ::1] loss = np.zeros((n_parts, LANES))
        cdef const level_kernels *kernels = kernels_in_use()
        for i in prange(n_parts, nogil=True, schedule="static", num_threads=self.n_threads,
                        use_threads_if=self.c.n * self.c.m * self.c.K > 1 << 18):
            kernels.targets(&self.c, True, i * COLUMNS, min(self.c.m, (i + 1) * COLUMNS),
                            &out[0, 0], &loss[i, 0], &self.room[threadid(), 0])
        found = np.ascontiguousarray(np.asarray(out)[:, : self.c.m].T)
        return found, math.fsum(np.asarray(loss).ravel())

    def products(self):
        """Return ``R B`` (n, K)."""
        cdef Py_ssize_t i, n_parts = (self.c.n + ROWS - 1) // ROWS
        found = np.empty((self.c.n, self.c.K))
        cdef double[:, ::1] out = found
        cdef const level_kernels *kernels = kernels_in_use()
        for i in prange(n_parts, nogil=True, schedule="static", num_threads=self.n_threads,
                        use_threads_if=self.c.n * self.c.m * self.c.K > 1 << 18):
            kernels.targets(&self.c, False, i * ROWS, min(self.c.n, (i + 1) * ROWS), &out[0, 0],
                            NULL, &self.room[threadid(), 0])
        return found
