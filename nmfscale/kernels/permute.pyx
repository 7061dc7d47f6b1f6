"""Random permutations, and sums of rows over groups with permuted labels, many at a time."""
from cython.parallel cimport prange, threadid
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from .levels cimport kernels_in_use
from .operands cimport aligned_address
from .random cimport below, generator
from .slices cimport PANEL, level_kernels

# Permutations that read one panel of columns while it is in the cache (L2 with thousands of units):
# wider panels, and fewer or more permutations, were slower.
cdef enum:
    BLOCK = 16

PANEL_COLUMNS = PANEL


cdef inline void swap(uint32_t *order, uint32_t i, uint32_t j) noexcept nogil:
    cdef uint32_t here = order[i]
    order[i] = order[j]
    order[j] = here


cdef void permute_two(
    uint32_t *one, uint32_t *other, const int64_t[:, ::1] sizes, const int64_t[::1] n_units,
    const uint64_t *seed, const uint64_t *other_seed
) noexcept nogil:
    """Draw two random labellings: order each stratum's units by the group they are assigned to.

    The units of the last group are not shuffled, because only its total is used. Each draw depends
    on the one before; alternating between two labellings hides this latency.
    """
    cdef generator g, h
    cdef uint32_t i, n
    cdef Py_ssize_t stratum, last = sizes.shape[1] - 1
    memcpy(g.state, seed, sizeof(g.state))
    memcpy(h.state, other_seed, sizeof(h.state))
    for stratum in range(sizes.shape[0]):
        n = <uint32_t>n_units[stratum]
        for i in range(n - <uint32_t>sizes[stratum, last]):
            swap(one, i, i + below(&g, n - i))
            swap(other, i, i + below(&h, n - i))
        one += n
        other += n


cdef void shuffle(
    uint32_t *order, const int64_t[::1] n_units, const uint64_t *seed
) noexcept nogil:
    """Shuffle the units within each stratum."""
    cdef generator g
    cdef Py_ssize_t stratum
    cdef uint32_t first = 0, i, n
    memcpy(g.state, seed, sizeof(g.state))
    for stratum in range(n_units.shape[0]):
        n = <uint32_t>n_units[stratum]
        for i in range(n):
            order[i] = first + i
        for i in range(n - 1):
            swap(order, i, i + below(&g, n - i))
        order += n
        first += n


def permuted_orders(
    const int64_t[::1] n_units,    # IN   number of units of each stratum; strata are contiguous
    const uint64_t[:, ::1] seeds,  # IN   (n_permutations, 4)
    uint32_t[:, ::1] orders,       # OUT  (n_permutations, n)
    int n_threads,
):
    """Write random orders of the units, shuffled within strata."""
    cdef Py_ssize_t i, n = np.asarray(n_units).sum()
    if (orders.shape[0] != seeds.shape[0] or seeds.shape[1] != 4 or orders.shape[1] != n
            or n >= 2 ** 32 or np.asarray(n_units).min() < 1):
        raise ValueError(
            f"n_units {np.asarray(n_units)}, seeds {(seeds.shape[0], seeds.shape[1])} and orders "
            f"{(orders.shape[0], orders.shape[1])} do not match"
        )
    for i in prange(seeds.shape[0], nogil=True, num_threads=n_threads):
        shuffle(&orders[i, 0], n_units, &seeds[i, 0])


cdef void sum_groups(
    const level_kernels *kernels, const int32_t *panel, const uint32_t *order,
    const int64_t[:, ::1] sizes, const int64_t[::1] n_units, const int32_t *total,
    int32_t *out, Py_ssize_t stride
) noexcept nogil:
    """out[group] = sums of its rows; the last group's are the total minus those of other groups."""
    cdef Py_ssize_t stratum, group, column, last = sizes.shape[1] - 1
    cdef const uint32_t *picked
    for group in range(last):
        memset(out + group * stride, 0, PANEL * sizeof(int32_t))
    memcpy(out + last * stride, total, PANEL * sizeof(int32_t))
    for stratum in range(sizes.shape[0]):
        picked = order
        for group in range(last):
            kernels.gather_sum(panel, picked, sizes[stratum, group], out + group * stride)
            picked += sizes[stratum, group]
        order += n_units[stratum]
    for group in range(last):
        for column in range(PANEL):
            out[last * stride + column] -= out[group * stride + column]


def permuted_sums(
    panels,                        # IN   int32 (n_panels, n, PANEL): values of units, by stratum
    const int64_t[:, ::1] sizes,   # IN   (n_strata, n_groups) numbers of units; largest group last
    const uint64_t[:, ::1] seeds,  # IN   (n_permutations, 4)
    out,                           # OUT  int32 (n_permutations, n_groups, n_panels * PANEL)
    int n_threads,
):
    """Write the sums of each group's rows, for labels permuted within strata."""
    cdef Py_ssize_t n_panels = panels.shape[0], n = panels.shape[1], R = sizes.shape[1]
    cdef Py_ssize_t n_permutations = seeds.shape[0], n_blocks = (n_permutations - 1) // BLOCK + 1
    cdef const int64_t[::1] n_units = np.asarray(sizes).sum(axis=1)
    if np.asarray(n_units).sum() != n or n >= 2 ** 32 or seeds.shape[1] != 4:
        raise ValueError(
            f"panels {panels.shape}, sizes {(sizes.shape[0], sizes.shape[1])} and seeds "
            f"{(seeds.shape[0], seeds.shape[1])} do not match"
        )
    cdef const int32_t *panel = <const int32_t *>aligned_address(
        panels, np.int32, (n_panels, n, PANEL), "panels")
    cdef int32_t *sums = <int32_t *>aligned_address(
        out, np.int32, (n_permutations, R, n_panels * PANEL), "out")
    totals_array = panels.sum(axis=1, dtype=np.int32)
    cdef const int32_t[:, ::1] totals = totals_array
    cdef const uint32_t[::1] first = np.arange(n, dtype=np.uint32)
    cdef uint32_t[:, :, ::1] orders = np.empty((n_threads, BLOCK, n), np.uint32)
    cdef const level_kernels *kernels = kernels_in_use()
    cdef Py_ssize_t block, i, k, at
    cdef uint32_t *order
    # labellings are drawn in pairs: with an odd number, the last is drawn twice
    for block in prange(n_blocks, nogil=True, schedule="dynamic", num_threads=n_threads):
        at = BLOCK * block
        for i in range(0, min(BLOCK, n_permutations - at), 2):
            order = &orders[threadid(), i, 0]
            memcpy(order, &first[0], n * sizeof(uint32_t))
            memcpy(order + n, &first[0], n * sizeof(uint32_t))
            permute_two(order, order + n, sizes, n_units, &seeds[at + i, 0],
                        &seeds[min(at + i + 1, n_permutations - 1), 0])
        for k in range(n_panels):
            for i in range(min(BLOCK, n_permutations - at)):
                sum_groups(kernels, panel + k * n * PANEL, &orders[threadid(), i, 0], sizes,
                           n_units, &totals[k, 0],
                           sums + ((at + i) * R * n_panels + k) * PANEL, n_panels * PANEL)
