"""Random numbers: how often each unit is drawn in a bootstrap; Gamma draws."""
from cython.parallel cimport prange
from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint64_t

import numpy as np

from .random cimport below, generator

cdef extern from "elementary.h" nogil:
    double logarithm(double)


def draw_counts(const uint64_t[:, ::1] states, const int64_t[::1] starts, double[:, ::1] counts, *,
                int n_threads):
    """Draw units with replacement within strata; counts[i] (n_units,) is how often each was drawn.

    The number of draws from a stratum is its number of units. Stratum s has units starts[s] to
    starts[s + 1] - 1, fewer than 2^32. `states` (n, 4) are seeds.
    """
    cdef Py_ssize_t i
    for i in prange(states.shape[0], nogil=True, num_threads=n_threads,
                    use_threads_if=states.shape[0] > 1):
        draw(&states[i, 0], starts, &counts[i, 0])


cdef void draw(const uint64_t *state, const int64_t[::1] starts, double *counts) noexcept nogil:
    cdef generator g
    cdef Py_ssize_t s, j, _i
    cdef int64_t first, size
    for j in range(4):
        g.state[j] = state[j]
    for s in range(starts.shape[0] - 1):
        first, size = starts[s], starts[s + 1] - starts[s]
        for j in range(size):
            counts[first + j] = 0
        for _i in range(size):
            counts[first + below(&g, size)] += 1


def gamma_draws(double shape, rng, Py_ssize_t n):
    """Return what ``rng.gamma(shape, size=n)`` returns, but with our logarithm; `shape` is above 1.

    `rng` is a ``numpy.random.RandomState``. Method of Marsaglia and Tsang (2000), with normal
    numbers by the polar method, which makes two at a time.
    """
    cdef double b = shape - 1.0 / 3.0, x, v, u, other = 0, square, factor
    cdef double c = 1.0 / sqrt(9 * b)
    cdef Py_ssize_t i = 0, used = 0, size = 4 * n + 64
    cdef bint has_other = False, complete = False
    found, start = np.empty(n), rng.get_state()
    *_, has_first, first = start
    cdef double[::1] out = found
    cdef const double[::1] uniform
    while not complete:
        rng.set_state(start)
        uniform = rng.random_sample(size)
        i, used, other, has_other, complete = 0, 0, first, has_first, True
        while i < n:
            if used + 3 > size:
                size, complete = 2 * size, False
                break
            if has_other:
                x, has_other = other, False
            else:
                x = 2.0 * uniform[used] - 1.0
                v = 2.0 * uniform[used + 1] - 1.0
                used += 2
                square = x * x + v * v
                if square >= 1.0 or square == 0.0:
                    continue
                factor = sqrt(-2.0 * logarithm(square) / square)
                other, x, has_other = factor * x, factor * v, True
            v = 1.0 + c * x
            if v <= 0.0:
                continue
            v = v * v * v
            u = uniform[used]
            used += 1
            if (u < 1.0 - 0.0331 * (x * x) * (x * x)
                    or logarithm(u) < 0.5 * x * x + b * (1.0 - v + logarithm(v))):
                out[i] = b * v
                i += 1
    rng.set_state(start)
    rng.random_sample(used)
    name, words, place, *_ = rng.get_state()
    rng.set_state((name, words, place, int(has_other), other if has_other else 0.0))
    return found
