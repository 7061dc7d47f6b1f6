/* Loops over counts in CSR and in SELL-16.  Sizes and kinds of numbers are constants of inline functions, so that each combination
 * has a loop of its own. A count that is only moved is a number of 1, 2, 4 or 8 bytes. */
#ifndef NMFSCALE_SELL_H
#define NMFSCALE_SELL_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
enum { UINT8, UINT16, FLOAT32, FLOAT64 };                 /* kinds of counts */

/* Rows of a block in CSR. */
typedef struct {
    const int64_t *indptr;
    const void *indices, *data;
    int index_bytes, count_bytes;
} csr_rows;

/* Entries in SELL-16, of all slices. */
typedef struct {
    void *index, *count;
    int index_bytes, count_bytes, count_kind;
    int64_t size;
} sell_entries;

#define INLINE static inline __attribute__((always_inline))

INLINE int64_t index_at(const void *index, const int bytes, int64_t i)
{
    if (bytes == 2)
        return ((const uint16_t *)index)[i];
    return bytes == 4 ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

INLINE double count_at(const void *count, const int kind, int64_t i)
{
    switch (kind) {
    case UINT8: return ((const uint8_t *)count)[i];
    case UINT16: return ((const uint16_t *)count)[i];
    case FLOAT32: return ((const float *)count)[i];
    default: return ((const double *)count)[i];
    }
}

/* Writes an index and a count to position `at`. */
INLINE void put_entry(const sell_entries *to, int64_t at, int64_t index, const void *data, int64_t q, const int index_bytes,
                      const int count_bytes)
{
    assert(0 <= at && at < to->size);
    if (index_bytes == 2)
        ((uint16_t *)to->index)[at] = (uint16_t)index;
    else
        ((int32_t *)to->index)[at] = (int32_t)index;
    memcpy((char *)to->count + at * count_bytes, (const char *)data + q * count_bytes, count_bytes);
}

/* Calls f with the sizes of indices that are read, of those that are written, and of counts, as constants. */
#define BY_COUNT(f, from, to, bytes, ...)                                                                                 \
    switch (bytes) {                                                                                                      \
    case 1: f(__VA_ARGS__, from, to, 1); break;                                                                           \
    case 2: f(__VA_ARGS__, from, to, 2); break;                                                                           \
    case 4: f(__VA_ARGS__, from, to, 4); break;                                                                           \
    default: f(__VA_ARGS__, from, to, 8);                                                                                 \
    }
#define BY_SIZES(f, from, other, to, bytes, ...)                                                                          \
    switch (4 * (from == other) + to) {                                                                                   \
    case 2: BY_COUNT(f, 4, 2, bytes, __VA_ARGS__) break;                                                                  \
    case 4: BY_COUNT(f, 4, 4, bytes, __VA_ARGS__) break;                                                                  \
    case 6: BY_COUNT(f, other, 2, bytes, __VA_ARGS__) break;                                                              \
    default: BY_COUNT(f, other, 4, bytes, __VA_ARGS__)                                                                    \
    }

INLINE void place_rows_of(const csr_rows *x, const int64_t *order, const int32_t *column_lane, int64_t offset,
                          const sell_entries *to, const int from_bytes, const int to_bytes, const int count_bytes)
{
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t row = order[lane];
        if (row < 0)
            continue;
        const int64_t first = x->indptr[row], last = x->indptr[row + 1];
        for (int64_t q = first; q < last; q++)
            put_entry(to, (offset + q - first) * LANES + lane, column_lane[index_at(x->indices, from_bytes, q)], x->data, q,
                      to_bytes, count_bytes);
    }
}

/* Fills a slice of rows, whose first entry is `offset`: entry q of a lane is the q-th nonzero of its row. */
static void fill_rows(const csr_rows *x, const int64_t *order, const int32_t *column_lane, int64_t offset, const sell_entries *to)
{
    BY_SIZES(place_rows_of, x->index_bytes, 8, to->index_bytes, x->count_bytes, x, order, column_lane, offset, to)
}

INLINE void place_columns_of(const csr_rows *x, const int64_t *order, int64_t first, int64_t last, int64_t *place,
                             const sell_entries *to, const int from_bytes, const int to_bytes, const int count_bytes)
{
    for (int64_t lane = first; lane < last; lane++) {
        const int64_t row = order[lane];
        if (row < 0)
            continue;
        for (int64_t q = x->indptr[row]; q < x->indptr[row + 1]; q++) {
            const int64_t column = index_at(x->indices, from_bytes, q), at = place[column];
            place[column] = at + LANES;
            put_entry(to, at, lane, x->data, q, to_bytes, count_bytes);
        }
    }
}

/* Appends the rows in lanes first to last to their columns; place[j] is the next free position of column j. */
static void fill_columns(const csr_rows *x, const int64_t *order, int64_t first, int64_t last, int64_t *place,
                         const sell_entries *to)
{
    BY_SIZES(place_columns_of, x->index_bytes, 8, to->index_bytes, x->count_bytes, x, order, first, last, place, to)
}

/* Finds where the entries of lane r end, which lie between steps first and last, and its pieces, which follow them.  Only the last
 * entries can be pieces, as these are all equal to `most`.  The index of the first piece does not rise. */
INLINE void find_ends(const sell_entries *x, int64_t first, int64_t last, int64_t most, int r, int64_t *ends)
{
    int64_t low = first, high = last, q;
    while (low < high) {                                  /* padding follows all entries */
        q = (low + high) / 2;
        if (count_at(x->count, x->count_kind, q * LANES + r) != 0)
            low = q + 1;
        else
            high = q;
    }
    q = low;
    while (q > first && count_at(x->count, x->count_kind, (q - 1) * LANES + r) == (double)most)
        q--;
    if (q == first)
        q++;
    while (q < low &&
           index_at(x->index, x->index_bytes, q * LANES + r) > index_at(x->index, x->index_bytes, (q - 1) * LANES + r))
        q++;
    ends[0] = q < low ? q : low;
    ends[1] = low;
}

/* Adds the numbers of entries of the lanes of a slice to `entries`, and those of their pieces to `pieces`. */
static void measure_slice(const sell_entries *x, int64_t first, int64_t last, int64_t most, int64_t *entries, int64_t *pieces)
{
    for (int r = 0; r < LANES; r++) {
        int64_t ends[2];
        find_ends(x, first, last, most, r, ends);
        entries[r] += ends[0] - first;
        pieces[r] += ends[1] - ends[0];
    }
}

INLINE void append_entries(const sell_entries *x, int64_t first, int64_t last, int64_t most, int64_t first_lane, int64_t *entries,
                           int64_t *pieces, int64_t to_first, const sell_entries *to, const int from_bytes, const int to_bytes,
                           const int count_bytes)
{
#define MOVE(at, i) put_entry(to, at, first_lane + index_at(x->index, from_bytes, i), x->count, i, to_bytes, count_bytes)
    int64_t ends[LANES][2], start[LANES], least = last;
    for (int r = 0; r < LANES; r++) {
        find_ends(x, first, last, most, r, ends[r]);
        least = ends[r][0] < least ? ends[r][0] : least;
        start[r] = (to_first + entries[r] - first) * LANES + r;
        entries[r] += ends[r][0] - first;
    }
    for (int64_t q = first; q < least; q++)               /* what all lanes have, in the order of memory */
        for (int r = 0; r < LANES; r++)
            MOVE(start[r] + q * LANES, q * LANES + r);
    for (int r = 0; r < LANES; r++) {
        for (int64_t q = least; q < ends[r][0]; q++)
            MOVE(start[r] + q * LANES, q * LANES + r);
        for (int64_t q = ends[r][0]; q < ends[r][1]; q++)
            MOVE((to_first + pieces[r]++) * LANES + r, q * LANES + r);
    }
#undef MOVE
}

/* Copies the entries of a slice behind those that `entries` and `pieces` count in the slice of `to` that begins at to_first. */
static void append_slice(const sell_entries *x, int64_t first, int64_t last, int64_t most, int64_t first_lane, int64_t *entries,
                         int64_t *pieces, int64_t to_first, const sell_entries *to)
{
    BY_SIZES(append_entries, x->index_bytes, 2, to->index_bytes, x->count_bytes, x, first, last, most, first_lane, entries, pieces,
             to_first, to)
}

INLINE int dense_with_index(const sell_entries *x, int64_t first, int64_t last, const int index_bytes)
{
    for (int64_t q = first; q < last; q++)
        for (int64_t i = q * LANES; i < (q + 1) * LANES; i++)
            if (index_at(x->index, index_bytes, i) != q - first && count_at(x->count, x->count_kind, i) != 0)
                return 0;
    return 1;
}

/* Whether entry q of a slice has index q in all lanes that have a count there. */
static int slice_is_dense(const sell_entries *x, int64_t first, int64_t last)
{
    return x->index_bytes == 2 ? dense_with_index(x, first, last, 2) : dense_with_index(x, first, last, 4);
}

#define WEIGH(TYPE, COUNT, INDEX)                                                                                         \
    for (int64_t i = first; i < last; i++)                                                                                \
        ((TYPE *)out)[i] = (TYPE)((TYPE)((const COUNT *)x->count)[i] * ((const TYPE *)weight)[((const INDEX *)x->index)[i]]);
#define WEIGH_COUNTS(TYPE, INDEX)                                                                                         \
    switch (x->count_kind) {                                                                                              \
    case UINT8: WEIGH(TYPE, uint8_t, INDEX) break;                                                                        \
    case UINT16: WEIGH(TYPE, uint16_t, INDEX) break;                                                                      \
    case FLOAT32: WEIGH(TYPE, float, INDEX) break;                                                                        \
    default: WEIGH(TYPE, double, INDEX)                                                                                   \
    }

/* Multiplies counts `first` to `last` by the weights of their indices, in the type of the weights. */
static void weigh_entries(const sell_entries *x, int64_t first, int64_t last, const void *weight, int kind, void *out)
{
    switch (2 * kind + (x->index_bytes == 4)) {
    case 2 * UINT16: WEIGH_COUNTS(uint16_t, uint16_t) break;
    case 2 * UINT16 + 1: WEIGH_COUNTS(uint16_t, int32_t) break;
    case 2 * FLOAT32: WEIGH_COUNTS(float, uint16_t) break;
    case 2 * FLOAT32 + 1: WEIGH_COUNTS(float, int32_t) break;
    case 2 * FLOAT64: WEIGH_COUNTS(double, uint16_t) break;
    default: WEIGH_COUNTS(double, int32_t)
    }
}

#endif
