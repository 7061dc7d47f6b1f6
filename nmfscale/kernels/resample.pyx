"""Multinomial weights of a bootstrap: the number of times that each unit is drawn."""
from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint64_t

from .random cimport below, generator


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
