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
    int64_t[:, ::1] n_entries,             # OUT  (2, n_lanes), added to
    int n_threads,
):
    """Count the entries of every lane: first those with rising indices, then the pieces.

    A piece of a large count follows all other entries of its lane, so its index does not rise.
    """
    cdef Py_ssize_t s
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        measure_slice(index, count, offset[s], offset[s + 1], s * LANES, n_entries)


cdef void measure_slice(
    const index_out[::1] index, const count_type[::1] count, int64_t first, int64_t last,
    Py_ssize_t lane, int64_t[:, ::1] n_entries,
) noexcept nogil:
    cdef int64_t[LANES] previous
    cdef bint[LANES] in_pieces
    cdef int64_t i
    cdef Py_ssize_t q, r
    for r in range(LANES):
        previous[r], in_pieces[r] = -1, False
    for q in range(first, last):
        for r in range(LANES):
            if count[q * LANES + r] != 0:
                i = index[q * LANES + r]
                in_pieces[r] = in_pieces[r] or i <= previous[r]
                previous[r] = i
                n_entries[1 if in_pieces[r] else 0, lane + r] += 1


def append_lanes(
    const index_out[::1] index,            # IN   columns of a block in SELL-16
    const count_type[::1] count,
    const int64_t[::1] offset,             # IN   first step of every slice
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
        append_slice(index, count, offset[s], offset[s + 1], first_lane, s * LANES, place,
                     to_offset[s], to_index, to_count)


cdef void append_slice(
    const index_out[::1] index, const count_type[::1] count, int64_t first, int64_t last,
    int64_t first_lane, Py_ssize_t lane, int64_t[:, ::1] place, int64_t to_first,
    index_to[::1] to_index, count_type[::1] to_count,
) noexcept nogil:
    cdef int64_t[LANES] previous
    cdef bint[LANES] in_pieces
    cdef int64_t i
    cdef Py_ssize_t q, r, at, kind
    for r in range(LANES):
        previous[r], in_pieces[r] = -1, False
    for q in range(first, last):
        for r in range(LANES):
            if count[q * LANES + r] != 0:
                i = index[q * LANES + r]
                in_pieces[r] = in_pieces[r] or i <= previous[r]
                previous[r] = i
                kind = 1 if in_pieces[r] else 0
                at = (to_first + place[kind, lane + r]) * LANES + r
                place[kind, lane + r] += 1
                to_index[at] = <index_to>(first_lane + i)
                to_count[at] = count[q * LANES + r]
