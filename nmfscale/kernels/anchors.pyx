"""Sums over the row slices of a block, for the choice of anchors among the columns.

The slices are cut into a fixed number of pieces. Each piece has its own sums, which are added in
the order of the pieces, so results do not depend on the number of threads. A count of 0, the
padding, ends a row.
"""
from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memset

import numpy as np

cdef enum:
    LANES = 16
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


def gram_columns(const index_type[::1] index, const count_type[::1] count,
                 const int64_t[::1] offset, const int64_t[::1] lanes, const int32_t[::1] order,
                 double[:, ::1] out, *, int n_threads, const double[::1] scales=None):
    """Add ``sum_i s_i x_ij x_ip`` to out[a, order[j]], p = lanes[a]; s is 1 without `scales`.

    All indices are read, but only the counts of rows in which column p occurs.
    """
    check_columns(order, out, lanes, scales, offset)
    cdef const int64_t[::1] cuts = pieces_of(offset)
    cdef Py_ssize_t a, i, j, m = order.shape[0]
    cdef double[:, ::1] found = np.empty((PIECES, m))
    cdef const double *scale = NULL
    cdef double total
    if not index.shape[0]:
        return
    if scales is not None:
        scale = &scales[0]
    for a in range(lanes.shape[0]):
        for i in prange(PIECES, nogil=True, schedule="dynamic", num_threads=n_threads,
                        use_threads_if=index.shape[0] > 1 << 14):
            gram_of_piece(&index[0], &count[0], &offset[0], cuts[i], cuts[i + 1],
                          <index_type>lanes[a], scale, m, &found[i, 0])
        for j in range(m):
            total = found[0, j]
            for i in range(1, PIECES):
                total += found[i, j]
            out[a, order[j]] += total


cdef void gram_of_piece(const index_type *index, const count_type *count, const int64_t *offset,
                        Py_ssize_t first, Py_ssize_t last, index_type lane, const double *scale,
                        Py_ssize_t m, double *out) noexcept nogil:
    cdef double[LANES] value
    cdef double x
    cdef Py_ssize_t s, i, r, begin, end
    memset(out, 0, m * sizeof(double))
    for s in range(first, last):
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


def squares(const index_type[::1] index, const count_type[::1] count, const int64_t[::1] offset,
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
    cdef double total
    if not index.shape[0]:
        scales[:] = 0
        return
    for i in prange(PIECES, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=index.shape[0] > 1 << 14):
        squares_of_piece(&index[0], &count[0], &offset[0], cuts[i], cuts[i + 1], &weights[0],
                         unit, &scales[0], &found[1, i, 0], &found[0, i, 0])
    for j in range(m):
        total = found[0, 0, j]
        for i in range(1, PIECES):
            total += found[0, i, j]
        out[0, order[j]] += total


cdef void squares_of_piece(const index_type *index, const count_type *count, const int64_t *offset,
                           Py_ssize_t first, Py_ssize_t last, const double *weights, bint unit,
                           double *scales, double *row, double *out) noexcept nogil:
    """Add the squares of a piece's counts; `row` first joins the parts of split counts."""
    cdef Py_ssize_t lane, i, j, end
    cdef double norm
    for lane in range(first * LANES, last * LANES):
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


def project(const index_type[::1] index, const count_type[::1] count, const int64_t[::1] offset,
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
    if not index.shape[0]:
        return
    for c in prange((d + CHUNK - 1) // CHUNK, nogil=True, schedule="dynamic",
                    num_threads=n_threads):
        project_chunk(&index[0], &count[0], &offset[first], n_slices, &order[0],
                      &directions[0, c * CHUNK], &out[0, c * CHUNK], d,
                      min(CHUNK, d - c * CHUNK))


cdef void project_chunk(const index_type *index, const count_type *count, const int64_t *offset,
                        Py_ssize_t n_slices, const int32_t *order, const double *directions,
                        double *out, Py_ssize_t d, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t lane, q, i, c
    cdef const double *z
    cdef double *y
    cdef double x
    for lane in range(n_slices * LANES):
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
