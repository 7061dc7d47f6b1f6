"""Conversion of a block of CSR rows to SELL-16, by rows or by columns; functions of its counts.

Functions whose arguments are memoryviews of several types have a copy for each combination of
types, and each copy is long. Loops with many combinations are therefore in sell.h.
"""
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

import numpy as np

cdef extern from "sell.h":
    enum:
        LANES, UINT8, UINT16, FLOAT32, FLOAT64

    ctypedef struct csr_rows:
        const int64_t *indptr
        const void *indices
        const void *data
        int index_bytes, count_bytes

    ctypedef struct sell_entries:
        void *index
        void *count
        int index_bytes, count_bytes, count_kind
        int64_t size

    void fill_rows(const csr_rows *, const int64_t *order, const int32_t *column_lane,
                   int64_t offset, const sell_entries *) noexcept nogil
    void fill_columns(const csr_rows *, const int64_t *order, int64_t first, int64_t last,
                      int64_t *place, const sell_entries *) noexcept nogil
    void measure_slice(const sell_entries *, int64_t first, int64_t last, int64_t most,
                       int64_t *entries, int64_t *pieces) noexcept nogil
    void append_slice(const sell_entries *, int64_t first, int64_t last, int64_t most,
                      int64_t first_lane, int64_t *entries, int64_t *pieces, int64_t to_first,
                      const sell_entries *) noexcept nogil
    bint slice_is_dense(const sell_entries *, int64_t first, int64_t last) noexcept nogil
    void weigh_entries(const sell_entries *, int64_t first, int64_t last, const void *weight,
                       int kind, void *out) noexcept nogil

ctypedef fused index_in:
    int32_t
    int64_t

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

_OF_INDICES = np.dtype(np.uint16), np.dtype(np.int32)
_OF_CSR_INDICES = np.dtype(np.int32), np.dtype(np.int64)
_KINDS = {
    np.dtype(np.uint8): UINT8, np.dtype(np.uint16): UINT16,
    np.dtype(np.float32): FLOAT32, np.dtype(np.float64): FLOAT64,
}
_OF_COUNTS = tuple(_KINDS)
_OF_WEIGHTS = _OF_COUNTS[1:]


cdef void *address(array, str name, tuple dtypes, Py_ssize_t size, bint writable) except NULL:
    """Return the address of a C-contiguous array of `size` numbers; the caller keeps it alive."""
    if array.dtype not in dtypes or array.size != size:
        raise ValueError(
            f"{name}: expected {size} numbers of type {' or '.join([str(t) for t in dtypes])}, got "
            f"{array.size} of type {array.dtype}"
        )
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
    cdef void *first = view.buf
    PyBuffer_Release(&view)
    return first


cdef csr_rows rows_of(const int64_t[::1] indptr, indices, data) except *:
    cdef csr_rows out
    out.indptr = &indptr[0]
    out.indices = address(indices, "indices", _OF_CSR_INDICES, len(data), False)
    out.data = address(data, "data", _OF_COUNTS, len(data), False)
    out.index_bytes, out.count_bytes = indices.itemsize, data.itemsize
    return out


cdef sell_entries entries_of(index, count, bint writable) except *:
    cdef sell_entries out
    out.index = address(index, "index", _OF_INDICES, len(count), writable)
    out.count = address(count, "count", _OF_COUNTS, len(count), writable)
    out.index_bytes, out.count_bytes = index.itemsize, count.itemsize
    out.count_kind, out.size = _KINDS[count.dtype], len(count)
    return out


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


def weigh(index, count, weight, out, int n_threads):
    """Write every count times the weight of its index to `out`, in the dtype of the weights.

    `index` and `count` are those of a block in SELL-16; there is one weight for each index.
    """
    cdef sell_entries entries = entries_of(index, count, False)
    cdef const void *weights = address(weight, "weight", _OF_WEIGHTS, len(weight), False)
    cdef void *products = address(out, "out", (weight.dtype,), entries.size, True)
    cdef int kind = _KINDS[weight.dtype]
    cdef int64_t q, at_once = 4096
    for q in prange((entries.size + at_once - 1) // at_once, nogil=True, schedule="static",
                    num_threads=n_threads, use_threads_if=entries.size > at_once):
        weigh_entries(&entries, q * at_once, min(entries.size, (q + 1) * at_once), weights, kind,
                      products)


def find_dense(index, count, const int64_t[::1] offset, uint8_t[::1] dense):
    """Find the slices whose entry q has index q in all lanes that have a count there.

    `dense` receives one number for each slice.
    """
    cdef sell_entries entries = entries_of(index, count, False)
    cdef Py_ssize_t s
    with nogil:
        for s in range(dense.shape[0]):
            dense[s] = slice_is_dense(&entries, offset[s], offset[s + 1])


def sum_rows(
    const int64_t[::1] indptr,            # IN   CSR
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
    indices,
    data,
    const int64_t[::1] order,              # IN   row of the block in each lane, -1 for padding
    const int32_t[::1] column_position,    # IN   lane of column j
    const int64_t[::1] offset,             # IN   first entry of every slice
    index,                                 # OUT
    count,                                 # OUT
    int n_threads,
):
    """Fill row slices: entry q of a lane is the q-th nonzero of its row."""
    cdef csr_rows rows = rows_of(indptr, indices, data)
    cdef sell_entries entries = entries_of(index, count, True)
    cdef const int32_t *lanes = &column_position[0] if column_position.shape[0] else NULL
    cdef Py_ssize_t s
    if data.dtype != count.dtype:
        raise ValueError(f"data are {data.dtype}, count {count.dtype}")
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        fill_rows(&rows, &order[s * LANES], lanes, offset[s], &entries)


def place_columns(
    const int64_t[::1] indptr,             # IN   the block, as CSR
    indices,
    data,
    const int64_t[::1] order,              # IN   row of the block in each lane, -1 for padding
    const int64_t[::1] cuts,               # IN   first lane of every share, and the end
    int64_t[:, ::1] place,                 # WORK (n_shares, n_columns) next free position in index
    index,                                 # OUT
    count,                                 # OUT
    int n_threads,
):
    """Fill column slices, with rows in lane order; the shares of lanes write side by side."""
    cdef csr_rows rows = rows_of(indptr, indices, data)
    cdef sell_entries entries = entries_of(index, count, True)
    cdef Py_ssize_t share
    if data.dtype != count.dtype:
        raise ValueError(f"data are {data.dtype}, count {count.dtype}")
    if not order.shape[0] or not place.shape[1]:
        return
    for share in prange(place.shape[0], nogil=True, schedule="static", num_threads=n_threads,
                        use_threads_if=place.shape[0] > 1):
        fill_columns(&rows, &order[0], cuts[share], cuts[share + 1], &place[share, 0], &entries)


def measure_lanes(
    index,                                 # IN   columns of a block in SELL-16
    count,
    const int64_t[::1] offset,             # IN   first step of every slice
    int64_t most,                          # IN   a piece of a large count; 0 if there are none
    int64_t[:, ::1] n_entries,             # OUT  (2, n_lanes), added to
    int n_threads,
):
    """Count the entries of every lane: first those with rising indices, then the pieces."""
    cdef sell_entries entries = entries_of(index, count, False)
    cdef Py_ssize_t s
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        measure_slice(&entries, offset[s], offset[s + 1], most, &n_entries[0, s * LANES],
                      &n_entries[1, s * LANES])


def append_lanes(
    index,                                 # IN   columns of a block in SELL-16
    count,
    const int64_t[::1] offset,             # IN   first step of every slice
    int64_t most,                          # IN   a piece of a large count; 0 if there are none
    int64_t first_lane,                    # IN   added to every index
    int64_t[:, ::1] place,                 # INOUT (2, n_lanes) next step of a lane: entries, pieces
    const int64_t[::1] to_offset,          # IN   first step of every slice of the output
    to_index,                              # OUT
    to_count,                              # OUT
    int n_threads,
):
    """Copy the entries of every lane behind those that are there, without the padding."""
    cdef sell_entries entries = entries_of(index, count, False)
    cdef sell_entries to = entries_of(to_index, to_count, True)
    cdef Py_ssize_t s
    if count.dtype != to_count.dtype:
        raise ValueError(f"count is {count.dtype}, to_count {to_count.dtype}")
    for s in prange(offset.shape[0] - 1, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=offset.shape[0] > 2):
        append_slice(&entries, offset[s], offset[s + 1], most, first_lane, &place[0, s * LANES],
                     &place[1, s * LANES], to_offset[s], &to)
