/* Passes over dense slices, whose entry q belongs to row q of the held factor in all lanes: rows are not gathered for each lane.
 * Operations and their order are those of the other passes, and so are the bits. */

typedef struct {
    const REAL *y;                                        /* counts, a vector every `step` numbers */
    int step;
    REAL converted[TILE * WIDTH] ALIGNED;
} NAME(dense_tile);

#define CONVERT_COUNTS(COUNT, CONVERT)                                                                                    \
    for (int t = 0; t < n; t++) {                                                                                         \
        const NAME(reals) y = CONVERT((const COUNT *)s->count + (q + t) * LANES + lane0);                                 \
        memcpy(tile->converted + t * WIDTH, &y, sizeof y);                                                                \
    }

/* Counts of n entries from entry q, where they are if they have the working type; prefetches the tile after the next. */
static void NAME(decode_dense)(const slice_counts *s, int64_t q, int n, int lane0, NAME(dense_tile) *tile)
{
    tile->y = tile->converted, tile->step = WIDTH;
    if (s->count_kind == (REAL_IS_FLOAT ? COUNT_FLOAT32 : COUNT_FLOAT64)) {
        tile->y = (const REAL *)s->count + q * LANES + lane0, tile->step = LANES;
        for (int t = 0; t < n; t++)
            __builtin_prefetch(tile->y + (t + 2 * TILE) * LANES);
        return;
    }
    switch (s->count_kind) {
    case COUNT_UINT8: CONVERT_COUNTS(uint8_t, NAME(reals_of_8)) break;
    case COUNT_UINT16: CONVERT_COUNTS(uint16_t, NAME(reals_of_16)) break;
    case COUNT_FLOAT32: CONVERT_COUNTS(float, NAME(reals_of_float)) break;
    default: CONVERT_COUNTS(double, NAME(reals_of_double))
    }
}

INLINE VEC NAME(load_unaligned)(const REAL *p)
{
    VEC x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* num_k += sum_t r_t a_tk for n_here coordinates, whose sums stay in registers; r has a vector every `step` numbers. */
INLINE void NAME(add_coordinates)(const REAL *a, int stride, int n, const REAL *r, int step, VEC *num, const int n_here)
{
    VEC sum[AT_ONCE];
    UNROLL for (int i = 0; i < n_here; i++)
        sum[i] = num[i];
    for (int t = 0; t < n; t++) {
        const VEC factor = NAME(load_unaligned)(r + t * step);
        UNROLL for (int i = 0; i < n_here; i++)
            sum[i] = FMA(factor, SET1(a[t * stride + i]), sum[i]);
    }
    UNROLL for (int i = 0; i < n_here; i++)
        num[i] = sum[i];
}

#define ADD_COORDINATES(n_here)                                                                                           \
    case n_here: NAME(add_coordinates)(a + k, p->stride, n, r, step, num + k, n_here); break;

static void NAME(add_dense)(const row_problem *p, const REAL *a, int n, const REAL *r, int step, VEC *num)
{
    for (int k = 0; k < p->n_components; k += AT_ONCE) {
        const int left = p->n_components - k;
        switch (left < AT_ONCE ? left : AT_ONCE) {
            ADD_COORDINATES(1) ADD_COORDINATES(2) ADD_COORDINATES(3) ADD_COORDINATES(4)
            ADD_COORDINATES(5) ADD_COORDINATES(6) ADD_COORDINATES(7) ADD_COORDINATES(8)
        }
    }
}

/* num = sum y a */
static void NAME(dense_linear_pass)(const row_problem *p, const slice_counts *s, int lane0, VEC *num)
{
    NAME(dense_tile) tile;
    memset(num, 0, p->stride * sizeof(VEC));
    for (int64_t q = 0; q < s->n_entries; q += TILE) {
        const int n = s->n_entries - q < TILE ? (int)(s->n_entries - q) : TILE;
        NAME(decode_dense)(s, q, n, lane0, &tile);
        NAME(add_dense)(p, (const REAL *)p->design + q * p->stride, n, tile.y, tile.step, num);
    }
}

/* num = sum y a / mu; adds sum y log mu to loglik, unless that is NULL */
static void NAME(dense_gradient_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, double *loglik)
{
    const int K = p->n_components, most = K <= 12 ? TILE : SHORT_TILE;
    NAME(dense_tile) tile;
    NAME(tile) means;
    memset(num, 0, p->stride * sizeof(VEC));
    for (int64_t q = 0; q < s->n_entries; q += most) {
        const int n = s->n_entries - q < most ? (int)(s->n_entries - q) : most;
        const REAL *design = (const REAL *)p->design + q * p->stride;
        NAME(decode_dense)(s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            const REAL *a = design + t * p->stride;
            VEC even = SET1(MU_MIN), odd = SET1(0);
            for (int k = 0; k < K; k += 2) {
                even = FMA(b[k], SET1(a[k]), even);
                if (k + 1 < K)
                    odd = FMA(b[k + 1], SET1(a[k + 1]), odd);
            }
            const VEC y = NAME(load_unaligned)(tile.y + t * tile.step);
            means.mu[t] = even + odd;
            means.r[t] = y / means.mu[t];
            STORE(means.y + t * WIDTH, y);
        }
        if (loglik)
            NAME(add_log)(n, &means, lane0, loglik);
        NAME(add_dense)(p, design, n, (const REAL *)means.r, WIDTH, num);
    }
}
