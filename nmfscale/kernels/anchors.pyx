"""Sums over the row slices of a block, for the choice of anchors among the columns.

The slices are cut into a fixed number of pieces. Each piece has its own sums, which are added in
the order of the pieces, so results do not depend on the number of threads. A count of 0, the
padding, ends a row.

Only functions of addresses have a copy for each type of indices and counts: copies of functions
that Python calls would be long.
"""
from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memset

import numpy as np

from .operands cimport address
from .operands import COUNT_KINDS
from .slices cimport COUNT_FLOAT32, COUNT_UINT8, COUNT_UINT16, LANES

cdef enum:
    GRAM, SQUARES, PROJECTION    # what is computed
    PIECES = 8                   # with more, adding up would take longer than the work of a thread
    CHUNK = 64                   # directions of a projection that a thread processes at a time
    SPAN = 512                   # columns that a thread processes, so that its sums stay in cache

ctypedef fused index_type:
    uint16_t
    int32_t

ctypedef fused count_type:
    uint8_t
    uint16_t
    float
    double

# Slices first to last of a block, and the arrays of a computation; some of these are NULL.
cdef struct piece:
    const void *index
    const void *count
    const int64_t *offset
    int index_bytes, count_kind
    Py_ssize_t first, last
    int64_t lane                 # GRAM: multiplied with this column
    Py_ssize_t n_columns
    const double *weights        # SQUARES: of the columns
    const double *scale          # GRAM: of the rows
    bint unit
    double *scales               # SQUARES: of the rows
    double *row                  # SQUARES: room for one row
    const int32_t *order         # PROJECTION: row of `out` of each column
    const double *directions
    Py_ssize_t n_directions, width
    double *out


cdef piece piece_of(index, count, const int64_t[::1] offset) except *:
    """Return all slices of a block of counts."""
    cdef piece out
    memset(&out, 0, sizeof(piece))
    kinds = index.dtype.kind, index.itemsize
    if kinds not in (("u", 2), ("i", 4)) or (count.dtype.kind, count.itemsize) not in COUNT_KINDS:
        raise ValueError(f"index {index.dtype} or count {count.dtype} is not a dtype of SELL-16")
    out.index = address(index, index.dtype, (len(count),), "index")
    out.count = address(count, count.dtype, (len(count),), "count")
    out.index_bytes = index.itemsize
    out.count_kind = COUNT_KINDS[count.dtype.kind, count.itemsize]
    out.offset, out.last = &offset[0], offset.shape[0] - 1
    return out


cdef void compute(int what, const piece *p) noexcept nogil:
    if p.index_bytes == 2:
        compute_with_index(what, <const uint16_t *>p.index, p)
    else:
        compute_with_index(what, <const int32_t *>p.index, p)


cdef void compute_with_index(int what, const index_type *index, const piece *p) noexcept nogil:
    if p.count_kind == COUNT_UINT8:
        compute_with_count(what, index, <const uint8_t *>p.count, p)
    elif p.count_kind == COUNT_UINT16:
        compute_with_count(what, index, <const uint16_t *>p.count, p)
    elif p.count_kind == COUNT_FLOAT32:
        compute_with_count(what, index, <const float *>p.count, p)
    else:
        compute_with_count(what, index, <const double *>p.count, p)


cdef void compute_with_count(int what, const index_type *index, const count_type *count,
                             const piece *p) noexcept nogil:
    if what == GRAM:
        gram_of_piece(index, count, p)
    elif what == SQUARES:
        squares_of_piece(index, count, p)
    else:
        project_chunk(index, count, p)


def pieces_of(const int64_t[::1] offset):
    """Cut the slices into pieces of about equally many entries; return the cuts (PIECES + 1,)."""
    entries = np.asarray(offset)
    cuts = np.searchsorted(entries, np.linspace(0, offset[offset.shape[0] - 1], PIECES + 1))
    cuts[0], cuts[PIECES] = 0, len(entries) - 1
    return cuts.astype(np.int64)


def check_columns(order, double[:, ::1] out, lanes, scales, const int64_t[::1] offset):
    """Check that every lane has a column in `out`, and every row a scale."""
    cdef Py_ssize_t m = len(order)
    if out.shape[1] != m or (m and not 0 <= np.min(order) <= np.max(order) < m):
        raise ValueError(f"order has {m} columns, out {out.shape[1]}")
    if len(lanes) and not 0 <= np.min(lanes) <= np.max(lanes) < m:
        raise ValueError(f"lanes are {lanes}: there are {m} columns")
    if scales is not None and len(scales) != (offset.shape[0] - 1) * LANES:
        raise ValueError(f"scales has {len(scales)} entries: one for each row is needed")


def gram_columns(index, count, const int64_t[::1] offset, const int64_t[::1] lanes,
                 const int32_t[::1] order, double[:, ::1] out, *, int n_threads,
                 const double[::1] scales=None):
    """Add ``sum_i s_i x_ij x_ip`` to out[a, order[j]], p = lanes[a]; s is 1 without `scales`.

    All indices are read, but only the counts of rows in which column p occurs.
    """
    check_columns(order, out, lanes, scales, offset)
    cdef const int64_t[::1] cuts = pieces_of(offset)
    cdef Py_ssize_t a, i, j, m = order.shape[0]
    cdef double[:, ::1] found = np.empty((PIECES, m))
    cdef piece whole = piece_of(index, count, offset)
    cdef piece[PIECES] pieces
    cdef double total
    if not len(index):
        return
    whole.n_columns = m
    if scales is not None:
        whole.scale = &scales[0]
    for i in range(PIECES):
        pieces[i] = whole
        pieces[i].first, pieces[i].last, pieces[i].out = cuts[i], cuts[i + 1], &found[i, 0]
    cdef bint large = len(index) > 1 << 14
    for a in range(lanes.shape[0]):
        for i in prange(PIECES, nogil=True, schedule="dynamic", num_threads=n_threads,
                        use_threads_if=large):
            pieces[i].lane = lanes[a]
            compute(GRAM, &pieces[i])
        for j in range(m):
            total = found[0, j]
            for i in range(1, PIECES):
                total += found[i, j]
            out[a, order[j]] += total


cdef void gram_of_piece(const index_type *index, const count_type *count,
                        const piece *p) noexcept nogil:
    cdef const int64_t *offset = p.offset
    cdef const double *scale = p.scale
    cdef double *out = p.out
    cdef index_type lane = <index_type>p.lane
    cdef double[LANES] value
    cdef double x
    cdef Py_ssize_t s, i, r, begin, end
    memset(out, 0, p.n_columns * sizeof(double))
    for s in range(p.first, p.last):
        begin, end = offset[s] * LANES, offset[s + 1] * LANES
        if not occurs(index + begin, end - begin, lane):
            continue
        memset(value, 0, LANES * sizeof(double))
        for i in range(begin, end):
            if index[i] == lane:                              # repeated if the count was split
                value[i % LANES] += <double>count[i]
        for r in range(LANES):
            if value[r] == 0:
                continue
            x = value[r] * scale[s * LANES + r] if scale != NULL else value[r]
            i = begin + r
            while i < end and count[i] != 0:
                out[index[i]] += x * <double>count[i]
                i += LANES


cdef inline bint occurs(const index_type *index, Py_ssize_t n, index_type lane) noexcept nogil:
    """Return whether `lane` is among the n indices; has no branch, so that it vectorises."""
    cdef index_type found = 0
    cdef Py_ssize_t i
    for i in range(n):
        found |= index[i] == lane
    return found != 0


def squares(index, count, const int64_t[::1] offset,
            const double[::1] weights, const int32_t[::1] order, double[:, ::1] out,
            double[::1] scales, *, int n_threads, bint unit=False):
    """Add ``sum_i s_i x_ij^2`` to out[0, order[j]], where s are the `scales` of the rows.

    With `unit`, first compute `scales`: ``s_i = 1 / sum_j w_j x_ij^2``, or 0 for an empty row.
    """
    check_columns(order, out, [], scales, offset)
    if weights.shape[0] != order.shape[0]:
        raise ValueError(f"weights has {weights.shape[0]} entries, order {order.shape[0]}")
    cdef const int64_t[::1] cuts = pieces_of(offset)
    cdef Py_ssize_t i, j, m = order.shape[0]
    cdef double[:, :, ::1] found = np.zeros((2, PIECES, m))   # sums; scratch space for one row
    cdef piece whole = piece_of(index, count, offset)
    cdef piece[PIECES] pieces
    cdef double total
    if not len(index):
        scales[:] = 0
        return
    whole.weights, whole.unit, whole.scales = &weights[0], unit, &scales[0]
    for i in range(PIECES):
        pieces[i] = whole
        pieces[i].first, pieces[i].last = cuts[i], cuts[i + 1]
        pieces[i].out, pieces[i].row = &found[0, i, 0], &found[1, i, 0]
    cdef bint large = len(index) > 1 << 14
    for i in prange(PIECES, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=large):
        compute(SQUARES, &pieces[i])
    for j in range(m):
        total = found[0, 0, j]
        for i in range(1, PIECES):
            total += found[0, i, j]
        out[0, order[j]] += total


cdef void squares_of_piece(const index_type *index, const count_type *count,
                           const piece *p) noexcept nogil:
    """Add the squares of a piece's counts; `row` first joins the parts of split counts."""
    cdef const int64_t *offset = p.offset
    cdef const double *weights = p.weights
    cdef bint unit = p.unit
    cdef double *scales = p.scales
    cdef double *row = p.row
    cdef double *out = p.out
    cdef Py_ssize_t lane, i, j, end
    cdef double norm
    for lane in range(p.first * LANES, p.last * LANES):
        i, norm = offset[lane // LANES] * LANES + lane % LANES, 0
        end = offset[lane // LANES + 1] * LANES
        while i < end and count[i] != 0:
            row[index[i]] += <double>count[i]
            i += LANES
        end, i = i, offset[lane // LANES] * LANES + lane % LANES
        while i < end:
            j = index[i]
            if row[j] > 0:                                    # negative: counted before
                norm += weights[j] * row[j] * row[j]
                row[j] = -row[j]
            i += LANES
        if unit:
            scales[lane] = 1 / norm if norm > 0 else 0
        i = offset[lane // LANES] * LANES + lane % LANES
        while i < end:
            j = index[i]
            out[j] += scales[lane] * row[j] * row[j]
            row[j] = 0
            i += LANES


def project(index, count, const int64_t[::1] offset,
            const int32_t[::1] order, const double[:, ::1] directions, double[:, ::1] out, *,
            Py_ssize_t first, int n_threads):
    """Add ``x_ij z_i`` to row order[j] of `out`, where z_i are the rows of `directions`.

    `directions` (n_lanes, d) belongs to the lanes of neighbouring slices, from slice `first`.
    """
    cdef Py_ssize_t c, d = directions.shape[1], n_slices = directions.shape[0] // LANES
    if out.shape[0] != order.shape[0] or out.shape[1] != d:
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1])}")
    if not 0 <= first <= first + n_slices < offset.shape[0]:
        raise ValueError(f"no slices {first}:{first + n_slices} among {offset.shape[0] - 1}")
    cdef piece whole = piece_of(index, count, offset)
    if not len(index):
        return
    whole.first, whole.last = first, first + n_slices
    whole.order, whole.n_directions = &order[0], d
    for c in prange((d + CHUNK - 1) // CHUNK, nogil=True, schedule="dynamic",
                    num_threads=n_threads):
        project_directions(&whole, &directions[0, c * CHUNK], &out[0, c * CHUNK],
                           min(CHUNK, d - c * CHUNK))


cdef void project_directions(const piece *whole, const double *directions, double *out,
                             Py_ssize_t width) noexcept nogil:
    cdef piece chunk = whole[0]
    chunk.directions, chunk.out, chunk.width = directions, out, width
    compute(PROJECTION, &chunk)


cdef void project_chunk(const index_type *index, const count_type *count,
                        const piece *p) noexcept nogil:
    cdef const int64_t *offset = p.offset + p.first
    cdef const int32_t *order = p.order
    cdef const double *directions = p.directions
    cdef double *out = p.out
    cdef Py_ssize_t lane, q, i, c, d = p.n_directions, width = p.width
    cdef const double *z
    cdef double *y
    cdef double x
    for lane in range((p.last - p.first) * LANES):
        z = directions + lane * d
        for q in range(offset[lane // LANES], offset[lane // LANES + 1]):
            i = q * LANES + lane % LANES
            if count[i] == 0:
                break
            x, y = <double>count[i], out + order[index[i]] * d
            for c in range(width):
                y[c] += x * z[c]


def eliminate(const double[:, ::1] rows, const double[::1] factors, double pivot,
              double[::1] column, double[::1] left, *, int n_threads):
    """Take one step of a Cholesky factorisation: ``c <- (c - sum_i f_i r_i) / pivot; left -= c^2``.

    c is `column`, f are the `factors`, r the `rows`.
    """
    cdef Py_ssize_t b, k = factors.shape[0], m = column.shape[0]
    if rows.shape[0] < k or rows.shape[1] != m or left.shape[0] != m:
        raise ValueError(f"rows has shape {(rows.shape[0], rows.shape[1])}, column {m} entries")
    for b in prange((m + SPAN - 1) // SPAN, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=m * k > 1 << 16):
        eliminate_span(&rows[0, b * SPAN] if k else NULL, m, &factors[0] if k else NULL, k, pivot,
                       &column[b * SPAN], &left[b * SPAN], min(SPAN, m - b * SPAN))


cdef void eliminate_span(const double *rows, Py_ssize_t m, const double *factors, Py_ssize_t k,
                         double pivot, double *column, double *left,
                         Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(k):
        for j in range(width):
            column[j] -= factors[i] * rows[i * m + j]
    for j in range(width):
        column[j] /= pivot
        left[j] -= column[j] * column[j]
