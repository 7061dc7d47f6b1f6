/* Passes over the counts of one slice, for one REAL and one instruction set (see simd.h). Steps are built from them.
 *
 * Notation: b a row that is updated (K coordinates), a a row of the held factor, y a count, mu = a . b,
 * num = sum y a / mu, g = total - num the gradient, H = sum y a a' / mu^2 the curvature (lower triangle, row by row).
 * Sums run over the entries of a row; entry q of a slice holds one count of each of its 16 lanes.
 */

#define MU_MIN ((REAL)1e-30)                              /* keeps y / mu and log mu finite when a row is all zeros */
#define MU2_MIN ((REAL)(REAL_IS_FLOAT ? 1e-30 : 1e-60))   /* and y / mu^2, which would overflow float for mu = MU_MIN */
#define TILE 16                                           /* entries processed together, so that their scaled rows stay in L1 */
#define BAND 16                                           /* columns of H processed together: their part of a tile stays in L1 */
#define AT_ONCE 8                                         /* sums of coordinates, or of groups of them, that registers hold */
#define SHORT_TILE 4                                      /* TILE for passes over more than 12 components that do not need H */
#define REGISTERS (LEVEL == 3 ? 32 : 16)
/* Two entries at a time, so that their chains of operations overlap, if the registers hold them besides the sums. */
#define TOGETHER(stride, sums) (2 * (stride) + (sums) <= REGISTERS - 4 ? 2 : 1)
#define PACKED(k, l) ((k) * ((k) + 1) / 2 + (l))

/* A tile of entries: positions to gather from, counts y, means mu, and the factors r = y / mu of the gathered rows and
 * w = y / mu^2 of their squares. */
typedef struct {
    uint32_t at[TILE * WIDTH] ALIGNED;
    REAL y[TILE * WIDTH] ALIGNED;
    VEC mu[TILE], r[TILE], w[TILE];
} NAME(tile);

/* Workspace of a slice, in vectors: b, g, d (stride each), A the gathered tile, H. */
#define WORK_B(w) ((VEC *)(w))
#define WORK_G(w) (WORK_B(w) + p->stride)
#define WORK_D(w) (WORK_G(w) + p->stride)
#define WORK_A(w) (WORK_D(w) + p->stride)
#define WORK_H(w) (WORK_A(w) + TILE * p->stride)

INLINE void NAME(load_rows)(const REAL *rows, int lane0, int stride, VEC *b)
{
    uint32_t at[WIDTH];
    for (int j = 0; j < WIDTH; j++)
        at[j] = (uint32_t)((lane0 + j) * stride);
    for (int k = 0; k < stride; k += GROUP)
        NAME(gather4)(rows + k, at, b + k);
}

INLINE void NAME(store_rows)(REAL *rows, int lane0, int stride, const VEC *b)
{
    for (int k = 0; k < stride; k += GROUP) {
        REAL buffer[GROUP][WIDTH] ALIGNED;
        for (int i = 0; i < GROUP; i++)
            STORE(buffer[i], b[k + i]);
        for (int j = 0; j < WIDTH; j++)
            for (int i = 0; i < GROUP; i++)
                rows[(int64_t)(lane0 + j) * stride + k + i] = buffer[i][j];
    }
}

#define DECODE(INDEX, COUNT, WIDEN_INDEX, CONVERT)                                                                       \
    do {                                                                                                                  \
        const INDEX *ix = (const INDEX *)s->index + q * LANES + lane0;                                                    \
        const COUNT *x = (const COUNT *)s->count + q * LANES + lane0;                                                     \
        for (size_t line = 0; line < TILE * LANES * sizeof(INDEX); line += 64)                                            \
            __builtin_prefetch((const char *)(ix + 2 * TILE * LANES) + line);                                             \
        for (size_t line = 0; line < TILE * LANES * sizeof(COUNT); line += 64)                                            \
            __builtin_prefetch((const char *)(x + 2 * TILE * LANES) + line);                                              \
        for (int t = 0; t < n; t++) {                                                                                     \
            NAME(ints) at = WIDEN_INDEX(ix + t * LANES) * stride;                                                         \
            NAME(reals) y = CONVERT(x + t * LANES);                                                                       \
            memcpy(out->at + t * WIDTH, &at, sizeof at);                                                                  \
            memcpy(out->y + t * WIDTH, &y, sizeof y);                                                                     \
        }                                                                                                                 \
    } while (0)

/* Counts and positions of n entries from entry q, converted to working types; prefetches the tile after the next. */
static void NAME(decode)(const row_problem *p, const slice_counts *s, int64_t q, int n, int lane0, NAME(tile) *out)
{
    const int32_t stride = p->stride;
    switch (s->count_kind + 4 * (s->index_bytes == 4)) {
    case 0: DECODE(uint16_t, uint8_t, NAME(ints_of_16), NAME(reals_of_8)); break;
    case 1: DECODE(uint16_t, uint16_t, NAME(ints_of_16), NAME(reals_of_16)); break;
    case 2: DECODE(uint16_t, float, NAME(ints_of_16), NAME(reals_of_float)); break;
    case 3: DECODE(uint16_t, double, NAME(ints_of_16), NAME(reals_of_double)); break;
    case 4: DECODE(int32_t, uint8_t, NAME(ints_of_32), NAME(reals_of_8)); break;
    case 5: DECODE(int32_t, uint16_t, NAME(ints_of_32), NAME(reals_of_16)); break;
    case 6: DECODE(int32_t, float, NAME(ints_of_32), NAME(reals_of_float)); break;
    default: DECODE(int32_t, double, NAME(ints_of_32), NAME(reals_of_double));
    }
}

/* Gathers K coordinates of the held factor's row of each lane of one entry into a; returns mu = a . b, summed in two chains. */
INLINE VEC NAME(gather_dot)(const REAL *design, const uint32_t *at, const VEC *b, VEC *a, const int K)
{
    VEC even = SET1(MU_MIN), odd = SET1(0);
    UNROLL for (int k = 0; k < K; k += 2 * GROUP) {
        VEC z[2 * GROUP];
        const int here = k + GROUP < K ? 2 * GROUP : GROUP;
        if (here == GROUP)
            NAME(gather4)(design + k, at, z);
        else
            NAME(gather8)(design + k, at, z);
        UNROLL for (int i = 0; i < here; i += 2) {
            if (k + i < K) {
                even = FMA(b[k + i], z[i], even);
                a[k + i] = z[i];
            }
            if (k + i + 1 < K) {
                odd = FMA(b[k + i + 1], z[i + 1], odd);
                a[k + i + 1] = z[i + 1];
            }
        }
    }
    return even + odd;
}

/* loglik[row] += the tile's sum of y log mu: REAL within a tile, double across tiles.  A loop of its own, because the processor's
 * window for reordering operations is too short to overlap it with the gathers. */
INLINE void NAME(add_log)(int n, const NAME(tile) *tile, int lane0, double *loglik)
{
    REAL lanes[WIDTH] ALIGNED;
    VEC sum = SET1(0);
    for (int t = 0; t < n; t++)
        sum = FMA(LOAD(tile->y + t * WIDTH), NAME(vlog)(tile->mu[t]), sum);
    STORE(lanes, sum);
    for (int j = 0; j < WIDTH; j++)
        loglik[lane0 + j] += lanes[j];
}

/* num_k += sum_t r_t a_tk and, unless h is NULL, h_k += sum_t w_t a_tk^2 */
INLINE void NAME(add_numerators)(int n, const int n_components, const int stride, const NAME(tile) *tile, const VEC *A, VEC *num,
                                 VEC *h)
{
    UNROLL for (int k = 0; k < n_components; k += GROUP) {
        VEC sum[GROUP], square[GROUP];
        UNROLL for (int i = 0; i < GROUP; i++)
            sum[i] = num[k + i], square[i] = h ? h[k + i] : SET1(0);
        for (int t = 0; t < n; t++)
            UNROLL for (int i = 0; i < GROUP; i++) {
                const VEC a = A[t * stride + k + i];
                sum[i] = FMA(tile->r[t], a, sum[i]);
                if (h)
                    square[i] = FMA(a * a, tile->w[t], square[i]);
            }
        UNROLL for (int i = 0; i < GROUP; i++) {
            num[k + i] = sum[i];
            if (h)
                h[k + i] = square[i];
        }
    }
}

/* H[k, l] += sum_t A_tk A_tl for rows k0 <= k < k0 + rows, columns l0 <= l < l0 + cols of the lower triangle. */
INLINE void NAME(curvature_tile)(int n, int stride, const VEC *A, VEC *H, int k0, int l0, const int rows, const int cols,
                                 const int gap)
{
    VEC c[GROUP][GROUP];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < cols; j++)
            if (j <= i + gap)
                c[i][j] = H[PACKED(k0 + i, l0 + j)];
    for (int t = 0; t < n; t++) {
        const VEC *a = A + t * stride;
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < cols; j++)
                if (j <= i + gap)
                    c[i][j] = FMA(a[k0 + i], a[l0 + j], c[i][j]);
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < cols; j++)
            if (j <= i + gap)
                H[PACKED(k0 + i, l0 + j)] = c[i][j];
}

/* Rows k0 <= k < k0 + rows of the lower triangle, in the band of columns from l1; with 16 registers a tile of H has two columns. */
INLINE void NAME(curvature_rows)(int n, int stride, const VEC *A, VEC *H, int k0, int l1, const int rows)
{
    const int diagonal = k0 < l1 + BAND, last = diagonal ? k0 : l1 + BAND;
#if LEVEL == 3
    for (int l0 = l1; l0 < last; l0 += GROUP)
        NAME(curvature_tile)(n, stride, A, H, k0, l0, rows, GROUP, GROUP);
    if (diagonal)
        NAME(curvature_tile)(n, stride, A, H, k0, k0, rows, rows, 0);
#else
    for (int l0 = l1; l0 < last; l0 += 2)
        NAME(curvature_tile)(n, stride, A, H, k0, l0, rows, 2, GROUP);
    if (diagonal)
        NAME(curvature_tile)(n, stride, A, H, k0, k0, rows, rows < 2 ? 1 : 2, 0);
    if (diagonal && rows > 2)
        NAME(curvature_tile)(n, stride, A, H, k0, k0 + 2, rows, rows - 2, -2);
#endif
}

static void NAME(add_curvature)(int n, int n_components, int stride, const VEC *A, VEC *H)
{
    const int k1 = n_components / GROUP * GROUP;
    for (int l1 = 0; l1 < n_components; l1 += BAND) {
        for (int k0 = l1; k0 < k1; k0 += GROUP)
            NAME(curvature_rows)(n, stride, A, H, k0, l1, GROUP);
        switch (n_components - k1) {
        case 1: NAME(curvature_rows)(n, stride, A, H, k1, l1, 1); break;
        case 2: NAME(curvature_rows)(n, stride, A, H, k1, l1, 2); break;
        case 3: NAME(curvature_rows)(n, stride, A, H, k1, l1, 3); break;
        }
    }
}

/* num = H b: sum y a a'b / mu^2 = sum y a / mu, all terms positive */
INLINE void NAME(numerators)(const VEC *H, const VEC *b, VEC *num, const int K)
{
    UNROLL for (int k = 0; k < K; k++) {
        VEC sum = SET1(0);
        UNROLL for (int l = 0; l < k; l++)
            sum = FMA(H[PACKED(k, l)], b[l], sum);
        UNROLL for (int l = k; l < K; l++)
            sum = FMA(H[PACKED(l, k)], b[l], sum);
        num[k] = sum;
    }
}

/* One pass over the slice at b for K components: num = sum y a / mu, and with DIAGONAL the diagonal of H = sum y a a' / mu^2.
 * With FULL: all of H, from a scaled copy a sqrt(y) / mu of the gathered rows, then num from H.  Adds sum y log mu to loglik,
 * unless that is NULL.  If K is known to the compiler, the gathered row stays in registers: stores between the scattered loads
 * are expensive. */
INLINE void NAME(pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A, VEC *H,
                       double *loglik, const int wanted, const int K, const int small)
{
    const int stride = (K + GROUP - 1) / GROUP * GROUP;
    const REAL *design = p->design;
    const int together = small && wanted != FULL ? TOGETHER(stride, wanted == DIAGONAL ? 2 * K : K) : 1;
    NAME(tile) tile;
    VEC registers[small ? together * stride : 1], sum[small ? stride : 1], square[small ? stride : 1];
    for (int k = 0; k < stride; k++)
        *(small ? sum + k : num + k) = SET1(0);
    for (int k = 0; small && k < stride; k++)
        square[k] = SET1(0);
    for (int h = 0; h < (wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? stride : 0); h++)
        H[h] = SET1(0);
    const int most = small || wanted == FULL ? TILE : SHORT_TILE;
    for (int64_t q = 0; q < s->n_entries; q += most) {
        const int n = s->n_entries - q < most ? (int)(s->n_entries - q) : most;
        NAME(decode)(p, s, q, n, lane0, &tile);
        if (n % together) {                               /* an entry without counts adds nothing */
            memset(tile.at + n * WIDTH, 0, WIDTH * sizeof *tile.at);
            memset(tile.y + n * WIDTH, 0, WIDTH * sizeof *tile.y);
        }
        for (int t0 = 0; t0 < n; t0 += together) {
            VEC *gathered = small ? registers : A + t0 * stride;
            UNROLL for (int t = t0; t < t0 + together; t++)
                tile.mu[t] = NAME(gather_dot)(design, tile.at + t * WIDTH, b, gathered + (t - t0) * stride,
                                              small ? K : stride);
            UNROLL for (int t = t0; t < t0 + together; t++) {
                const VEC *a = gathered + (t - t0) * stride, mu = tile.mu[t];
                const VEC y = LOAD(tile.y + t * WIDTH), r = (wanted == FULL ? VSQRT(y) : y) / mu;
                VEC w = SET1(0);
                if (wanted == DIAGONAL)
                    w = y / VMAX(mu * mu, SET1(MU2_MIN));
                if (wanted == FULL)
                    UNROLL for (int k = 0; k < K; k++)
                        A[t * stride + k] = a[k] * r;
                else if (!small)
                    tile.r[t] = r, tile.w[t] = w;
                else
                    UNROLL for (int k = 0; k < K; k++) {
                        sum[k] = FMA(r, a[k], sum[k]);
                        if (wanted == DIAGONAL)
                            square[k] = FMA(a[k] * a[k], w, square[k]);
                    }
            }
        }
        if (loglik)
            NAME(add_log)(n, &tile, lane0, loglik);
        if (!small && wanted != FULL)
            NAME(add_numerators)(n, K, stride, &tile, A, num, wanted == DIAGONAL ? H : NULL);
        if (wanted == FULL)
            NAME(add_curvature)(n, K, stride, A, H);
    }
    if (wanted == FULL)
        NAME(numerators)(H, b, num, K);
    for (int k = 0; small && wanted != FULL && k < stride; k++)
        num[k] = sum[k];
    for (int k = 0; small && wanted == DIAGONAL && k < stride; k++)
        H[k] = square[k];
}

#include "dense_slices.h"

#define PASS(...) NAME(pass)(p, s, lane0, b, num, A, H, loglik, WANTED, __VA_ARGS__); break
#define PASS_CASE(K)                                                                                                      \
    case K: PASS(K, 1);
#define PASS_BODY                                                                                                         \
    switch (p->n_components) {                                                                                            \
        PASS_CASE(1) PASS_CASE(2) PASS_CASE(3) PASS_CASE(4) PASS_CASE(5) PASS_CASE(6)                                     \
        PASS_CASE(7) PASS_CASE(8) PASS_CASE(9) PASS_CASE(10) PASS_CASE(11) PASS_CASE(12)                                  \
    default: PASS(p->n_components, 0);                                                                                    \
    }

/* The pass, with the number of components known to the compiler if it is at most 12. */
static void NAME(gradient_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A,
                                double *loglik)
{
    VEC *const H = NULL;
    if (s->dense) {
        NAME(dense_gradient_pass)(p, s, lane0, b, num, loglik);
        return;
    }
#define WANTED GRADIENT
    PASS_BODY
#undef WANTED
}

static void NAME(newton_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A,
                              VEC *H, double *loglik)
{
#define WANTED FULL
    PASS_BODY
#undef WANTED
}

static void NAME(diagonal_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A,
                                VEC *H, double *loglik)
{
#define WANTED DIAGONAL
    PASS_BODY
#undef WANTED
}
