/* The arithmetic of one slice, for one REAL and one instruction set (see lanes.h and slices.h).
 *
 * Letters: b the rows that move (K coordinates), a a row of the held factor, y a count, mu = a . b,
 * g = total - sum y a / mu the gradient, H = sum y a a' / mu^2 the curvature (lower triangle, row by row).
 */

#define MU_MIN ((REAL)1e-30)                              /* keeps y / mu and log mu finite when all of a row is zero */
#define TILE 16                                           /* steps taken together, so that their scaled rows stay in L1 */
#define PACKED(k, l) ((k) * ((k) + 1) / 2 + (l))

/* A tile of steps: where to gather from, counts, and what multiplies the gathered rows. */
typedef struct {
    uint32_t at[TILE * WIDTH] ALIGNED;
    REAL y[TILE * WIDTH] ALIGNED;
    VEC r[TILE];
} NAME(tile);

/* Workspace of a visit, in vectors: b, g, d (K each, padded), the gathered tile, H. */
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

/* Counts and positions of n steps from step q in working types; the tile after the next is on its way from memory. */
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
    if (p->weight)
        for (int t = 0; t < n * WIDTH; t++)
            out->y[t] *= ((const REAL *)p->weight)[out->at[t] / (uint32_t)stride];
}

/* Gathers one step into a and returns mu = a . b, summed in two chains. */
INLINE VEC NAME(gather_dot)(const REAL *design, const uint32_t *at, const VEC *b, VEC *a, const int K)
{
    VEC even = SET1(MU_MIN), odd = SET1(0);
    UNROLL for (int k = 0; k < K; k += 2 * GROUP) {
        VEC z[2 * GROUP];
        const int n = k + GROUP < K ? 2 * GROUP : GROUP;
        if (n == GROUP)
            NAME(gather4)(design + k, at, z);
        else
            NAME(gather8)(design + k, at, z);
        UNROLL for (int i = 0; i < n; i += 2) {
            if (k + i < K)
                even = FMA(b[k + i], z[i], even), a[k + i] = z[i];
            if (k + i + 1 < K)
                odd = FMA(b[k + i + 1], z[i + 1], odd), a[k + i + 1] = z[i + 1];
        }
    }
    return even + odd;
}

/* loglik[row] += the tile's sum of y log mu: REAL within a tile, double across tiles */
INLINE void NAME(add_log)(VEC sum, int lane0, double *loglik)
{
    REAL lanes[WIDTH] ALIGNED;
    STORE(lanes, sum);
    for (int j = 0; j < WIDTH; j++)
        loglik[lane0 + j] += lanes[j];
}

/* H_kk += sum_t a_tk^2 */
INLINE void NAME(add_squares)(int n, int stride, const VEC *A, VEC *H)
{
    for (int k = 0; k < stride; k++) {
        VEC h = H[k];
        for (int t = 0; t < n; t++)
            h = FMA(A[t * stride + k], A[t * stride + k], h);
        H[k] = h;
    }
}

/* num_k += sum_t r_t a_tk */
INLINE void NAME(add_numerators)(int n, const int n_components, const int stride, const VEC *r, const VEC *A, VEC *num)
{
    UNROLL for (int k = 0; k < n_components; k += GROUP) {
        VEC n0 = num[k], n1 = num[k + 1], n2 = num[k + 2], n3 = num[k + 3];
        for (int t = 0; t < n; t++) {
            const VEC *a = A + t * stride + k;
            n0 = FMA(r[t], a[0], n0), n1 = FMA(r[t], a[1], n1), n2 = FMA(r[t], a[2], n2), n3 = FMA(r[t], a[3], n3);
        }
        num[k] = n0, num[k + 1] = n1, num[k + 2] = n2, num[k + 3] = n3;
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

/* One band of the lower triangle: rows k0 .. k0 + rows; with 16 registers the tiles are two columns wide. */
INLINE void NAME(curvature_band)(int n, int stride, const VEC *A, VEC *H, int k0, const int rows)
{
#if LEVEL == 3
    for (int l0 = 0; l0 < k0; l0 += GROUP)
        NAME(curvature_tile)(n, stride, A, H, k0, l0, rows, GROUP, GROUP);
    NAME(curvature_tile)(n, stride, A, H, k0, k0, rows, rows, 0);
#else
    for (int l0 = 0; l0 < k0; l0 += 2)
        NAME(curvature_tile)(n, stride, A, H, k0, l0, rows, 2, GROUP);
    NAME(curvature_tile)(n, stride, A, H, k0, k0, rows, rows < 2 ? 1 : 2, 0);
    if (rows > 2)
        NAME(curvature_tile)(n, stride, A, H, k0, k0 + 2, rows, rows - 2, -2);
#endif
}

static void NAME(add_curvature)(int n, int n_components, int stride, const VEC *A, VEC *H)
{
    for (int k0 = 0; k0 + GROUP <= n_components; k0 += GROUP)
        NAME(curvature_band)(n, stride, A, H, k0, GROUP);
    const int k0 = n_components / GROUP * GROUP;
    switch (n_components - k0) {
    case 1: NAME(curvature_band)(n, stride, A, H, k0, 1); break;
    case 2: NAME(curvature_band)(n, stride, A, H, k0, 2); break;
    case 3: NAME(curvature_band)(n, stride, A, H, k0, 3); break;
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

/* Pass over the slice at b for K components: num = sum y a / mu or, where H is wanted, H = sum y a a' / mu^2 from a
 * scaled copy of the gathered rows, a sqrt(y) / mu, and num from H; adds the log-likelihood when asked.  With K known to
 * the compiler the gathered row stays in registers: stores between the scattered loads cost twice what they seem to. */
INLINE void NAME(pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A, VEC *H,
                       double *loglik, const int wanted, const int K, const int small)
{
    const int stride = (K + GROUP - 1) / GROUP * GROUP;
    const REAL *design = p->design;
    NAME(tile) tile;
    VEC registers[small ? stride : 1], sum[small ? stride : 1], square[small ? stride : 1];
    for (int k = 0; k < stride; k++)
        *(small ? sum + k : num + k) = SET1(0);
    for (int k = 0; small && k < stride; k++)
        square[k] = SET1(0);
    for (int h = 0; h < (wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? stride : 0); h++)
        H[h] = SET1(0);
    for (int64_t q = 0; q < s->n_steps; q += TILE) {
        const int n = s->n_steps - q < TILE ? (int)(s->n_steps - q) : TILE;
        VEC log_sum = SET1(0);
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            VEC *a = small ? registers : A + t * stride, y = LOAD(tile.y + t * WIDTH);
            VEC mu = NAME(gather_dot)(design, tile.at + t * WIDTH, b, a, small ? K : stride);
            VEC r = y / mu;
            if (loglik)
                log_sum = FMA(y, NAME(vlog)(mu), log_sum);
            if (wanted != GRADIENT) {
                r = VSQRT(y);
                VEC w = r / mu;
                UNROLL for (int k = 0; k < K; k++)
                    a[k] *= w;
            }
            if (!small)
                tile.r[t] = r;
            else
                UNROLL for (int k = 0; k < K; k++) {
                    if (wanted == FULL)
                        A[t * stride + k] = a[k];
                    else
                        sum[k] = FMA(r, a[k], sum[k]);
                    if (wanted == DIAGONAL)
                        square[k] = FMA(a[k], a[k], square[k]);
                }
        }
        if (loglik)
            NAME(add_log)(log_sum, lane0, loglik);
        if (!small && wanted != FULL)
            NAME(add_numerators)(n, K, stride, tile.r, A, num);
        if (!small && wanted == DIAGONAL)
            NAME(add_squares)(n, stride, A, H);
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

#define PASS_CASE(K)                                                                                                      \
    case K: NAME(pass)(p, s, lane0, b, num, A, H, loglik, WANTED, K, 1); break;
#define PASS_BODY                                                                                                         \
    switch (p->n_components) {                                                                                            \
        PASS_CASE(1) PASS_CASE(2) PASS_CASE(3) PASS_CASE(4) PASS_CASE(5) PASS_CASE(6) PASS_CASE(7) PASS_CASE(8)           \
        PASS_CASE(9) PASS_CASE(10) PASS_CASE(11) PASS_CASE(12)                                                            \
    default: NAME(pass)(p, s, lane0, b, num, A, H, loglik, WANTED, p->n_components, 0);                                   \
    }

/* The pass with the number of components known to the compiler where that is small. */
static void NAME(gradient_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *A,
                                double *loglik)
{
    VEC *const H = NULL;
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

/* g_k = total_k + rate_k - num_k - pseudo_k / b_k  (Corollary 2: a Gamma prior adds pseudo-counts and a rate) */
INLINE void NAME(gradient)(const row_problem *p, const slice_rows *rows, int lane0, const VEC *b, const VEC *num, VEC *g)
{
    const REAL *total = p->total;
    for (int k = 0; k < p->n_components; k++)
        g[k] = SET1(total[k]) - num[k];
    if (rows->pseudo) {
        VEC *extra = g + 2 * p->stride;                   /* the tile of gathered rows is free between passes */
        NAME(load_rows)(rows->rate, lane0, p->stride, extra);
        for (int k = 0; k < p->n_components; k++)
            g[k] += extra[k];
        NAME(load_rows)(rows->pseudo, lane0, p->stride, extra);
        for (int k = 0; k < p->n_components; k++)
            g[k] -= extra[k] / b[k];
    }
}

/* max_k |b_k g_k|, the KKT residual of a row */
INLINE void NAME(put_kkt)(const row_problem *p, int lane0, const VEC *b, const VEC *g, double *kkt)
{
    VEC worst = SET1(0);
    REAL lanes[WIDTH] ALIGNED;
    for (int k = 0; k < p->n_components; k++) {
        VEC residual = VABS(b[k] * g[k]);
        if (p->moves)
            residual *= SET1(((const REAL *)p->moves)[k]);
        worst = VMAX(worst, residual);
    }
    STORE(lanes, worst);
    for (int j = 0; j < WIDTH; j++)
        kkt[lane0 + j] = lanes[j];
}

/* b_k <- b_k (num_k + pseudo_k / b_k) / (total_k + rate_k), written with the gradient: b (1 - g / (total + rate)) */
INLINE void NAME(em_step)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, const VEC *num, VEC *extra)
{
    const REAL *total = p->total, *moves = p->moves;
    const VEC least = SET1((REAL)p->floor);
    if (!rows->pseudo) {
        for (int k = 0; k < p->n_components; k++)
            if (!moves || moves[k] != 0)
                b[k] = VMAX(b[k] * (num[k] / SET1(total[k])), least);
        return;
    }
    NAME(load_rows)(rows->pseudo, lane0, p->stride, extra);
    for (int k = 0; k < p->n_components; k++)
        if (!moves || moves[k] != 0)
            b[k] = FMA(b[k], num[k], extra[k]);
    NAME(load_rows)(rows->rate, lane0, p->stride, extra);
    for (int k = 0; k < p->n_components; k++)
        if (!moves || moves[k] != 0)
            b[k] = VMAX(b[k] / (SET1(total[k]) + extra[k]), least);
}

/* min over d >= -b of g'd + d'Hd / 2 by coordinate descent; a row stops by its own decrease, so that its
 * numbers do not depend on its neighbours. */
INLINE void NAME(qp)(const row_problem *p, const VEC *b, const VEC *gradient, const VEC *H, VEC *d, VEC *g, VEC *inverse,
                     const int K)
{
    const REAL *moves = p->moves;
    const VEC enough = SET1((REAL)p->qp_tolerance);
    VEC live = SET1(1);
    UNROLL for (int k = 0; k < K; k++) {
        d[k] = SET1(0), g[k] = gradient[k];
        inverse[k] = SET1(moves ? moves[k] : 1) / (H[PACKED(k, k)] + SET1((REAL)1e-12));
    }
    for (int sweep = 0; sweep < p->qp_sweeps; sweep++) {
        VEC most = SET1(0);
        UNROLL for (int k = 0; k < K; k++) {
            VEC e = (VMAX(FNMA(g[k], inverse[k], d[k]), SET1(0) - b[k]) - d[k]) * live;
            d[k] += e;
            UNROLL for (int l = 0; l < k; l++)
                g[l] = FMA(e, H[PACKED(k, l)], g[l]);
            UNROLL for (int l = k; l < K; l++)
                g[l] = FMA(e, H[PACKED(l, k)], g[l]);
            most = VMAX(most, e * e * H[PACKED(k, k)]);
        }
        live *= AT_LEAST(most, enough);
        if (!ANY(live))
            break;
    }
}

#define QP_CASE(K)                                                                                                        \
    case K: {                                                                                                             \
        VEC dk[K], gk[K], inverse[K];                                                                                     \
        NAME(qp)(p, b, g, H, dk, gk, inverse, K);                                                                         \
        for (int k = 0; k < K; k++)                                                                                       \
            d[k] = dk[k];                                                                                                 \
        break;                                                                                                            \
    }

/* b <- max(b + d, floor) with d from the quadratic model. */
static void NAME(newton_step)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, const VEC *g, VEC *H, VEC *d)
{
    VEC *spare = d + p->stride;                           /* the tile of gathered rows is free between passes */
    if (rows->pseudo) {
        NAME(load_rows)(rows->pseudo, lane0, p->stride, spare);
        for (int k = 0; k < p->n_components; k++)
            H[PACKED(k, k)] += spare[k] / (b[k] * b[k]);
    }
    switch (p->n_components) {
        QP_CASE(1) QP_CASE(2) QP_CASE(3) QP_CASE(4) QP_CASE(5) QP_CASE(6) QP_CASE(7) QP_CASE(8) QP_CASE(9)
        QP_CASE(10) QP_CASE(11) QP_CASE(12)
    default:
        NAME(qp)(p, b, g, H, d, spare, spare + p->stride, p->n_components);
    }
    for (int k = 0; k < p->n_components; k++)
        b[k] = VMAX(b[k] + d[k], SET1((REAL)p->floor));
}

/* Kept curvature is float whatever REAL is: it only shapes a step. */
static void NAME(keep_curvature)(int n, int lane0, const VEC *H, float *kept)
{
    for (int h = 0; h < n; h++) {
        REAL lanes[WIDTH] ALIGNED;
        STORE(lanes, H[h]);
        for (int j = 0; j < WIDTH; j++)
            kept[h * LANES + lane0 + j] = (float)lanes[j];
    }
}

/* Kept curvature brought up to date: its correlations, today's diagonal (which stands in H[0 .. K)). */
static void NAME(kept_curvature)(int n_components, int lane0, VEC *H, const float *kept, VEC *scale, double margin)
{
    for (int k = n_components - 1; k >= 0; k--) {
        REAL lanes[WIDTH] ALIGNED;
        for (int j = 0; j < WIDTH; j++)
            lanes[j] = (REAL)kept[PACKED(k, k) * LANES + lane0 + j];
        VEC now = H[k];
        scale[k] = VSQRT(now / (LOAD(lanes) + SET1((REAL)1e-30)));
        H[PACKED(k, k)] = now * SET1((REAL)margin);
    }
    for (int k = 0; k < n_components; k++)
        for (int l = 0; l < k; l++) {
            REAL lanes[WIDTH] ALIGNED;
            for (int j = 0; j < WIDTH; j++)
                lanes[j] = (REAL)kept[PACKED(k, l) * LANES + lane0 + j];
            H[PACKED(k, l)] = LOAD(lanes) * scale[k] * scale[l];
        }
}

/* em_steps EM steps, then newton_steps second-order steps, on every row of the slice. */
static void NAME(visit)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int n_packed = PACKED(p->n_components, 0), em_steps = s->n_steps <= p->em_longest ? p->em_steps : 0;
    if (rows->loglik_start)
        memset(rows->loglik_start, 0, LANES * sizeof(double));
    if (rows->loglik_end)
        memset(rows->loglik_end, 0, LANES * sizeof(double));
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        double *loglik = rows->loglik_start, *kkt = rows->kkt_start;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        for (int i = 0; i < em_steps; i++) {
            NAME(gradient_pass)(p, s, lane0, b, d, A, loglik);
            if (kkt) {
                NAME(gradient)(p, rows, lane0, b, d, g);
                NAME(put_kkt)(p, lane0, b, g, kkt);
            }
            NAME(em_step)(p, rows, lane0, b, d, A);
            loglik = kkt = NULL;
        }
        for (int i = 0; i < p->newton_steps; i++) {
            if (rows->curvature && rows->curvature_mode == CURVATURE_KEPT) {
                NAME(diagonal_pass)(p, s, lane0, b, d, A, H, loglik);
                NAME(kept_curvature)(p->n_components, lane0, H, rows->curvature, A, p->margin);
            } else {
                NAME(newton_pass)(p, s, lane0, b, d, A, H, loglik);
                if (rows->curvature && rows->curvature_mode == CURVATURE_KEEP)
                    NAME(keep_curvature)(n_packed, lane0, H, rows->curvature);
            }
            NAME(gradient)(p, rows, lane0, b, d, g);
            if (kkt)
                NAME(put_kkt)(p, lane0, b, g, kkt);
            NAME(newton_step)(p, rows, lane0, b, g, H, d);
            loglik = kkt = NULL;
        }
        if (rows->loglik_end || rows->kkt_end) {
            NAME(gradient_pass)(p, s, lane0, b, d, A, rows->loglik_end);
            NAME(gradient)(p, rows, lane0, b, d, g);
            if (rows->kkt_end)
                NAME(put_kkt)(p, lane0, b, g, rows->kkt_end);
        }
        if (rows->end)
            NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}

/* Adds to out what a step needs: num (K, 16), num and the diagonal of H (2 K, 16), or H (K (K + 1) / 2, 16), which holds num. */
static void NAME(sums)(const row_problem *p, const slice_counts *s, const slice_rows *rows, int wanted, double *out,
                       void *workspace)
{
    VEC *b = WORK_B(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int K = p->n_components, n_num = wanted == FULL ? 0 : K;
    const int n_curvature = wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? K : 0;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        REAL lanes[WIDTH] ALIGNED;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        if (wanted == FULL)
            NAME(newton_pass)(p, s, lane0, b, d, A, H, NULL);
        else if (wanted == DIAGONAL)
            NAME(diagonal_pass)(p, s, lane0, b, d, A, H, NULL);
        else
            NAME(gradient_pass)(p, s, lane0, b, d, A, NULL);
        for (int h = 0; h < n_num + n_curvature; h++) {
            STORE(lanes, h < n_num ? d[h] : H[h - n_num]);
            for (int j = 0; j < WIDTH; j++)
                out[h * LANES + lane0 + j] += (double)lanes[j];
        }
    }
}

/* The step of a visit from statistics summed elsewhere: an EM step from num (GRADIENT), a second-order step from H (FULL,
 * kept where there is room) or from num, its diagonal and the correlations kept (DIAGONAL). */
static void NAME(step)(const row_problem *p, const double *sums, const slice_rows *rows, int wanted, void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int K = p->n_components, n_num = wanted == FULL ? 0 : K;
    const int n_curvature = wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? K : 0;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        REAL lanes[WIDTH] ALIGNED;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        for (int h = 0; h < n_num + n_curvature; h++) {
            for (int j = 0; j < WIDTH; j++)
                lanes[j] = (REAL)sums[h * LANES + lane0 + j];
            *(h < n_num ? d + h : H + h - n_num) = LOAD(lanes);
        }
        if (wanted == FULL)
            NAME(numerators)(H, b, d, K);
        NAME(gradient)(p, rows, lane0, b, d, g);
        if (rows->kkt_start)
            NAME(put_kkt)(p, lane0, b, g, rows->kkt_start);
        if (wanted == GRADIENT) {
            NAME(em_step)(p, rows, lane0, b, d, A);
        } else {
            if (wanted == DIAGONAL)
                NAME(kept_curvature)(K, lane0, H, rows->curvature, A, p->margin);
            else if (rows->curvature)
                NAME(keep_curvature)(n_curvature, lane0, H, rows->curvature);
            NAME(newton_step)(p, rows, lane0, b, g, H, d);
        }
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}

/* One coordinate of a descent: mu kept current by the pending change of the coordinate before (row `before`),
 * then b_k <- max(floor, b_k - g_k / h_k); `guarded` shortens a decrease by 1 / (1 + lambda), lambda = c |d| sqrt h
 * with c = 1 / sqrt(min y), when lambda > 0.683802 (Hien and Gillis, scalar Newton: never raises the loss). */
INLINE VEC NAME(coordinate)(const row_problem *p, int64_t n, int k, const VEC *a, const VEC *before, VEC change, const VEC *y,
                            VEC *mu, VEC *b, VEC total, VEC pseudo, VEC concordance)
{
    VEC g = total - pseudo / b[k], h = pseudo / (b[k] * b[k]) + SET1((REAL)1e-12);
    for (int64_t q = 0; q < n; q++) {
        VEC m = VMAX(FMA(change, before[q], mu[q]), FMA(b[k], a[q], SET1(MU_MIN))), r = a[q] / m, yr = y[q] * r;
        mu[q] = m;
        g -= yr;
        h = FMA(yr, r, h);
    }
    VEC d = VMAX(b[k] - g / h, SET1((REAL)p->floor)) - b[k];
    if (p->guarded) {
        VEC lambda = concordance * VABS(d) * VSQRT(h);
        VEC far = AT_LEAST(lambda, SET1((REAL)0.683802)) * (SET1(1) - AT_LEAST(SET1(0), g));
        d = d / (SET1(1) + far * lambda);
    }
    if (p->moves)
        d *= SET1(((const REAL *)p->moves)[k]);
    b[k] = VMAX(b[k] + d, SET1((REAL)p->floor));          /* b + (floor - b) may round to zero */
    return d;
}

/* em_steps EM steps, then newton_steps sweeps of coordinate descent (CCD, SCD or scalar Newton), on every row. */
static void NAME(descend)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    const int K = p->n_components, stride = p->stride;
    const int64_t n = s->n_steps;
    const REAL *total = p->total;
    VEC *b = WORK_B(workspace), *num = WORK_G(workspace), *extra = WORK_D(workspace), *A = WORK_A(workspace);
    VEC *rate = WORK_H(workspace), *pseudo = rate + stride, *y = pseudo + stride, *mu = y + n, *columns = mu + n;
    NAME(tile) tile;
    if (rows->loglik_end)
        memset(rows->loglik_end, 0, LANES * sizeof(double));
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        VEC change = SET1(0), least = SET1((REAL)1e30);
        NAME(load_rows)(rows->start, lane0, stride, b);
        for (int i = 0; i < p->em_steps; i++) {
            NAME(gradient_pass)(p, s, lane0, b, num, A, NULL);
            if (rows->kkt_start && i == 0) {
                NAME(gradient)(p, rows, lane0, b, num, extra);
                NAME(put_kkt)(p, lane0, b, extra, rows->kkt_start);
            }
            NAME(em_step)(p, rows, lane0, b, num, A);
        }
        for (int64_t q = 0; q < n; q += TILE) {           /* the gathered rows, one coordinate after the other */
            const int nt = n - q < TILE ? (int)(n - q) : TILE;
            NAME(decode)(p, s, q, nt, lane0, &tile);
            for (int t = 0; t < nt; t++) {
                VEC yt = LOAD(tile.y + t * WIDTH), zero = SET1(1) - AT_LEAST(yt, SET1((REAL)1e-30));
                y[q + t] = yt;
                mu[q + t] = NAME(gather_dot)(p->design, tile.at + t * WIDTH, b, A, stride);
                VEC candidate = FMA(zero, SET1((REAL)1e30), yt);
                least = SET1(0) - VMAX(SET1(0) - least, SET1(0) - candidate);
                for (int k = 0; k < K; k++)
                    columns[k * n + q + t] = A[k];
            }
        }
        for (int k = 0; k < stride; k++)
            rate[k] = pseudo[k] = SET1(0);
        if (rows->pseudo) {
            NAME(load_rows)(rows->rate, lane0, stride, rate);
            NAME(load_rows)(rows->pseudo, lane0, stride, pseudo);
        }
        VEC concordance = SET1(1) / VSQRT(least);
        const VEC *before = columns;
        for (int sweep = 0; sweep < p->newton_steps; sweep++)
            for (int k = 0; k < K; k++) {
                const VEC *a = columns + k * n;
                change = NAME(coordinate)(p, n, k, a, before, change, y, mu, b, SET1(total[k]) + rate[k], pseudo[k], concordance);
                before = a;
            }
        if (rows->loglik_end)
            for (int64_t q = 0; q < n; q += TILE) {
                const int nt = n - q < TILE ? (int)(n - q) : TILE;
                VEC log_sum = SET1(0);
                for (int t = 0; t < nt; t++) {
                    VEC m = SET1(MU_MIN);
                    for (int k = 0; k < K; k++)
                        m = FMA(b[k], columns[k * n + q + t], m);
                    log_sum = FMA(y[q + t], NAME(vlog)(m), log_sum);
                }
                NAME(add_log)(log_sum, lane0, rows->loglik_end);
            }
        NAME(store_rows)(rows->end, lane0, stride, b);
    }
}

/* ahead = max(now + momentum (now - before), floor), which may be the memory of before; its column sums in row order,
 * largest change. */
static void NAME(extrapolate)(const row_problem *p, int n_rows, const void *now, const void *before, void *ahead,
                              double momentum, double *column_sums, double *change, int64_t *zeros)
{
    const REAL *x = now, *old = before, beta = (REAL)momentum, least = (REAL)p->floor;
    REAL *out = ahead, largest = 0;
    const int stride = p->stride, K = p->n_components;
    int64_t n_zeros = 0;
    for (int k = 0; k < stride; k++)
        column_sums[k] = 0;
    for (int i = 0; i < n_rows; i++)
        for (int k = 0; k < K; k++) {
            REAL value = x[i * stride + k], moved = value - old[i * stride + k], next = value + beta * moved;
            next = next > least ? next : least;
            out[i * stride + k] = next;
            column_sums[k] += (double)next;
            n_zeros += value <= least;
            moved = moved < 0 ? -moved : moved;
            largest = moved > largest ? moved : largest;
        }
    *change = (double)largest;
    *zeros = n_zeros;
}

/* Sum of mu over the nonzeros of each row: gathering and dot products alone, the floor under every kernel's time. */
INLINE void NAME(expected)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *A, double *out, const int K)
{
    REAL lanes[WIDTH] ALIGNED;
    VEC sum = SET1(0), registers[12], *a = K <= 12 ? registers : A;
    NAME(tile) tile;
    for (int64_t q = 0; q < s->n_steps; q += TILE) {
        const int n = s->n_steps - q < TILE ? (int)(s->n_steps - q) : TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            VEC mu = NAME(gather_dot)(p->design, tile.at + t * WIDTH, b, a, K);
            sum = FMA(mu, AT_LEAST(LOAD(tile.y + t * WIDTH), SET1((REAL)1e-30)), sum);
        }
    }
    STORE(lanes, sum);
    for (int j = 0; j < WIDTH; j++)
        out[lane0 + j] = lanes[j];
}

static void NAME(only_gather_dot)(const row_problem *p, const slice_counts *s, const slice_rows *rows, double *out, void *workspace)
{
    VEC *b = WORK_B(workspace), *A = WORK_A(workspace);
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        switch (p->n_components) {
        case 6: NAME(expected)(p, s, lane0, b, A, out, 6); break;
        case 10: NAME(expected)(p, s, lane0, b, A, out, 10); break;
        default: NAME(expected)(p, s, lane0, b, A, out, p->stride);
        }
    }
}
