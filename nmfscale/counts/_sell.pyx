"""Conversion of a block of CSR rows to SELL-16, by rows or by columns; functions of its counts."""
from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

cdef enum:
    LANES = 16

ctypedef fused index_in:
    int32_t
    int64_t

ctypedef fused index_out:
    uint16_t
    int32_t

ctypedef fused index_to:
    uint16_t
    int32_t

ctypedef fused count_type:
    uint8_t
    uint16_t
    float
    double


ctypedef fused weighted_count:
    uint16_t
    float
    double

ctypedef fused any_count:
    uint8_t
    uint16_t
    uint32_t
    int32_t
    int64_t
    float
    double

ctypedef fused small_count:
    uint8_t
    uint16_t


def count_values(const small_count[::1] data, int64_t[:, ::1] found):
    """Count how often each value x occurs: the sum of found[:, x] grows by this number.

    Four tables alternate: most counts are 1, and an addition to the same entry would have to wait
    for the previous one. The length of `data` is a multiple of 16.
    """
    cdef Py_ssize_t q
    for q in range(0, data.shape[0], 4):
        found[0, data[q]] += 1
        found[1, data[q + 1]] += 1
        found[2, data[q + 2]] += 1
        found[3, data[q + 3]] += 1


def weigh(
    const index_out[::1] index,            # IN   indices and counts of a block in SELL-16
    const count_type[::1] count,
    const weighted_count[::1] weight,      # IN   one weight for each index
    weighted_count[::1] out,               # OUT
    int n_threads,
):
    """Multiply every count by the weight of its index, in the dtype of the weights."""
    cdef Py_ssize_t q
    for q in prange(index.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=index.shape[0] > 4096):
        out[q] = <weighted_count>(<weighted_count>count[q] * weight[index[q]])


def find_dense(
    const index_out[::1] index,            # IN   indices and counts of a block in SELL-16
    const count_type[::1] count,
    const int64_t[::1] offset,
    uint8_t[::1] dense,                    # OUT  one entry for each slice
):
    """Find the slices whose entry q has index q in all lanes that have a count there."""
    cdef Py_ssize_t s, q, lane, at
    with nogil:
        for s in range(dense.shape[0]):
            dense[s], q = True, 0
            while dense[s] and q < offset[s + 1] - offset[s]:
                for lane in range(LANES):
                    at = LANES * (offset[s] + q) + lane
                    if index[at] != q and count[at] != 0:
                        dense[s] = False
                q += 1


def sum_rows(
    const index_in[::1] indptr,            # IN   CSR
    const any_count[::1] data,             # IN   integers
    const double[::1] table,               # IN   value of the function at each integer
    double[::1] out,                       # OUT  one sum for each row
):
    """Sum a function of the counts over each row, in the stored order."""
    cdef Py_ssize_t row, q
    cdef double total
    with nogil:
        for row in range(out.shape[0]):
            total = 0
            for q in range(indptr[row], indptr[row + 1]):
                total += table[<Py_ssize_t>data[q]]
            out[row] = total


def count_columns(
    const int64_t[::1] indptr,             # IN   the block, as CSR
    const index_in[::1] indices,
    const int64_t[::1] order,              # IN   row of the block in each lane, -1 for padding
    const int64_t[::1] cuts,               # IN   first lane of every share, and the end
    int64_t[:, ::1] found,                 # OUT  (n_shares, n_columns), zeros on input
    int n_threads,
):
    """Count the nonzeros of every column in the rows of each share of the lanes."""
    cdef Py_ssize_t share, lane, q, row
    for share in prange(found.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=found.shape[0] > 1):
        for lane in range(cuts[share], cuts[share + 1]):
            row = order[lane]
            if row >= 0:
                for q in range(indptr[row], indptr[row + 1]):
                    found[share, indices[q]] += 1


def place_rows(
    const int64_t[::1] indptr,             # IN   the block, as CSR
    const index_in[::1] indices,
    const count_type[::1] data,
    const int64_t[::1] order,              # IN   row of the block in each lane, -1 for padding
    const int32_t[::1] column_position,    # IN   lane of column j
    const int64_t[::1] offset,             # IN   first entry of every slice
    index_out[::1] index,                  # OUT
    count_type[::1] count,                 # OUT
    int n_threads,
):
    """Fill row slices: entry q of a lane is the q-th nonzero of its row."""
    cdef Py_ssize_t s, lane, q, row, first, at
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        for lane in range(LANES):
            row = order[s * LANES + lane]
            if row >= 0:
                first = indptr[row]
                for q in range(first, indptr[row + 1]):
                    at = (offset[s] + q - first) * LANES + lane
                    index[at] = <index_out>column_position[indices[q]]
                    count[at] = data[q]


def place_columns(
    const int64_t[::1] indptr,             # IN   the block, as CSR
    const index_in[::1] indices,
    const count_type[::1] data,
    const int64_t[::1] order,              # IN   row of the block in each lane, -1 for padding
    const int64_t[::1] cuts,               # IN   first lane of every share, and the end
    int64_t[:, ::1] place,                 # WORK (n_shares, n_columns) next free position in index
    index_out[::1] index,                  # OUT
    count_type[::1] count,                 # OUT
    int n_threads,
):
    """Fill column slices, with rows in lane order; the shares of lanes write side by side."""
    cdef Py_ssize_t share, lane, q, row, at
    for share in prange(place.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=place.shape[0] > 1):
        for lane in range(cuts[share], cuts[share + 1]):
            row = order[lane]
            if row >= 0:
                for q in range(indptr[row], indptr[row + 1]):
                    at = place[share, indices[q]]
                    place[share, indices[q]] = at + LANES
                    index[at] = <index_out>lane
                    count[at] = data[q]


def measure_lanes(
    const index_out[::1] index,            # IN   columns of a block in SELL-16
    const count_type[::1] count,
    const int64_t[::1] offset,             # IN   first step of every slice
    int64_t most,                          # IN   a piece of a large count; 0 if there are none
    int64_t[:, ::1] n_entries,             # OUT  (2, n_lanes), added to
    int n_threads,
):
    """Count the entries of every lane: first those with rising indices, then the pieces."""
    cdef Py_ssize_t s
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        measure_slice(index, count, offset[s], offset[s + 1], most, s * LANES, n_entries)


cdef void measure_slice(
    const index_out[::1] index, const count_type[::1] count, int64_t first, int64_t last,
    int64_t most, Py_ssize_t lane, int64_t[:, ::1] n_entries,
) noexcept nogil:
    cdef int64_t[2] ends
    cdef Py_ssize_t r
    for r in range(LANES):
        find_ends(index, count, first, last, most, r, ends)
        n_entries[0, lane + r] += ends[0] - first
        n_entries[1, lane + r] += ends[1] - ends[0]


cdef inline void find_ends(
    const index_out[::1] index, const count_type[::1] count, int64_t first, int64_t last,
    int64_t most, Py_ssize_t r, int64_t *ends,
) noexcept nogil:
    """Find where the entries of a lane end, and its pieces, which follow them.

    Only the last entries can be pieces, as these are all equal to `most`. The index of the first
    piece does not rise.
    """
    cdef int64_t low = first, high = last, q
    while low < high:                      # padding follows all entries
        q = (low + high) // 2
        if count[q * LANES + r] != 0:
            low = q + 1
        else:
            high = q
    q = low
    while q > first and count[(q - 1) * LANES + r] == most:
        q -= 1
    if q == first:
        q += 1
    while q < low and index[q * LANES + r] > index[(q - 1) * LANES + r]:
        q += 1
    ends[0], ends[1] = min(q, low), low


def append_lanes(
    const index_out[::1] index,            # IN   columns of a block in SELL-16
    const count_type[::1] count,
    const int64_t[::1] offset,             # IN   first step of every slice
    int64_t most,                          # IN   a piece of a large count; 0 if there are none
    int64_t first_lane,                    # IN   added to every index
    int64_t[:, ::1] place,                 # INOUT (2, n_lanes) next step of a lane: entries, pieces
    const int64_t[::1] to_offset,          # IN   first step of every slice of the output
    index_to[::1] to_index,                # OUT
    count_type[::1] to_count,              # OUT
    int n_threads,
):
    """Copy the entries of every lane behind those that are there, without the padding."""
    cdef Py_ssize_t s
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        append_slice(index, count, offset[s], offset[s + 1], most, first_lane, s * LANES, place,
                     to_offset[s], to_index, to_count)


cdef void append_slice(
    const index_out[::1] index, const count_type[::1] count, int64_t first, int64_t last,
    int64_t most, int64_t first_lane, Py_ssize_t lane, int64_t[:, ::1] place, int64_t to_first,
    index_to[::1] to_index, count_type[::1] to_count,
) noexcept nogil:
    cdef int64_t[LANES][2] ends
    cdef int64_t[LANES] to
    cdef int64_t least = last, q, at
    cdef Py_ssize_t r
    for r in range(LANES):
        find_ends(index, count, first, last, most, r, ends[r])
        least = min(least, ends[r][0])
        to[r] = (to_first + place[0, lane + r] - first) * LANES + r
        place[0, lane + r] += ends[r][0] - first
    for q in range(first, least):          # what all lanes have, in the order of memory
        for r in range(LANES):
            to_index[to[r] + q * LANES] = <index_to>(first_lane + index[q * LANES + r])
            to_count[to[r] + q * LANES] = count[q * LANES + r]
    for r in range(LANES):
        for q in range(least, ends[r][0]):
            to_index[to[r] + q * LANES] = <index_to>(first_lane + index[q * LANES + r])
            to_count[to[r] + q * LANES] = count[q * LANES + r]
        for q in range(ends[r][0], ends[r][1]):
            at = (to_first + place[1, lane + r]) * LANES + r
            place[1, lane + r] += 1
            to_index[at] = <index_to>(first_lane + index[q * LANES + r])
            to_count[at] = count[q * LANES + r]
