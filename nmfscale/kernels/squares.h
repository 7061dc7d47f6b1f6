/* Least squares: min over b >= 0 of  b'Gb / 2 - b'num  for the rows of one slice, with G = D'D of the held factor, num = sum y a.
 *
 * The product D b of a row is never formed.  A row may have extra terms pseudo_k and rate_k: a multiplicative step is then
 * b_k <- (b_k num_k + pseudo_k) / ((G b)_k + rate_k).
 */

/* Adds y a over n entries of one lane, for n_groups groups of coordinates, which stay in registers. */
INLINE void NAME(add_rows)(const REAL *design, const NAME(tile) *tile, int n, int lane, REAL *sums, const int n_groups)
{
    NAME(group) sum[AT_ONCE], a;
    UNROLL for (int i = 0; i < n_groups; i++)
        memcpy(sum + i, sums + i * GROUP, sizeof a);
    for (int t = 0; t < n; t++) {
        const REAL *row = design + tile->at[t * WIDTH + lane], y = tile->y[t * WIDTH + lane];
        UNROLL for (int i = 0; i < n_groups; i++) {
            memcpy(&a, row + i * GROUP, sizeof a);
            sum[i] = NAME(fma_group)(y, a, sum[i]);
        }
    }
    UNROLL for (int i = 0; i < n_groups; i++)
        memcpy(sums + i * GROUP, sum + i, sizeof a);
}

#define ADD_ROWS(n_groups)                                                                                                \
    case n_groups: NAME(add_rows)(design + k, &tile, n, j, sums + j * p->stride + k, n_groups); break;

/* num = sum y a over the counts of each row. Coordinates of a row are neighbours in memory: each lane adds whole rows, and only the
 * sums are transposed. `room` has the size of num. */
static void NAME(linear_pass)(const row_problem *p, const slice_counts *s, int lane0, VEC *num, VEC *room)
{
    const REAL *design = p->design;
    REAL *sums = (REAL *)room;
    NAME(tile) tile;
    if (s->dense) {
        NAME(dense_linear_pass)(p, s, lane0, num);
        return;
    }
    memset(room, 0, p->stride * sizeof(VEC));
    for (int64_t q = 0; q < s->n_entries; q += TILE) {
        const int n = s->n_entries - q < TILE ? (int)(s->n_entries - q) : TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int k = 0; k < p->stride; k += AT_ONCE * GROUP) {
            const int left = (p->stride - k) / GROUP;
            for (int j = 0; j < WIDTH; j++)
                switch (left < AT_ONCE ? left : AT_ONCE) {
                    ADD_ROWS(1) ADD_ROWS(2) ADD_ROWS(3) ADD_ROWS(4) ADD_ROWS(5) ADD_ROWS(6) ADD_ROWS(7) ADD_ROWS(8)
                }
        }
    }
    NAME(load_rows)(sums, 0, p->stride, num);
}

/* Row k of G times b, in four chains of operations. */
INLINE VEC NAME(gram_dot)(const row_problem *p, int k, const VEC *b)
{
    const int K = p->n_components;
    const REAL *G = (const REAL *)p->gram + k * K;
    VEC sum[GROUP];
    int l = 0;
    UNROLL for (int i = 0; i < GROUP; i++)
        sum[i] = SET1(0);
    for (; l + GROUP <= K; l += GROUP)
        UNROLL for (int i = 0; i < GROUP; i++)
            sum[i] = FMA(SET1(G[l + i]), b[l + i], sum[i]);
    for (; l < K; l++)
        sum[0] = FMA(SET1(G[l]), b[l], sum[0]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* num <- scale num - total */
INLINE void NAME(linear_term)(const row_problem *p, const slice_rows *rows, int lane0, VEC *num)
{
    const REAL *total = p->total;
    REAL lanes[WIDTH] ALIGNED;
    if (rows->scale) {
        for (int j = 0; j < WIDTH; j++)
            lanes[j] = (REAL)rows->scale[lane0 + j];
        for (int k = 0; k < p->n_components; k++)
            num[k] *= LOAD(lanes);
    }
    if (total)
        for (int k = 0; k < p->n_components; k++)
            num[k] -= SET1(total[k]);
}

/* At most qp_sweeps sweeps of coordinate descent on b'Gb / 2 - b'num. A row whose sweep lowers this by less than about qp_tolerance
 * stops, so that its result does not depend on the other rows of the slice. Components without curvature stay. */
static void NAME(descend_quadratic)(const row_problem *p, VEC *b, const VEC *num)
{
    const REAL *G = p->gram;
    const int K = p->n_components;
    const VEC least = SET1((REAL)p->floor), enough = SET1((REAL)p->qp_tolerance);
    VEC live = SET1(1);
    for (int sweep = 0; sweep < p->qp_sweeps && ANY(live); sweep++) {
        VEC most = SET1(0);
        for (int k = 0; k < K; k++) {
            const REAL curvature = G[k * K + k];
            if (!(curvature > 0))
                continue;
            const VEC g = NAME(gram_dot)(p, k, b) - num[k];
            const VEC change = live * (VMAX(FNMA(g, SET1(1 / curvature), b[k]), least) - b[k]);
            b[k] = VMAX(b[k] + change, least);
            most = VMAX(most, change * change * SET1(curvature));
        }
        live *= AT_LEAST(most, enough);
    }
}

/* 2 b'num - b'Gb, the part of the sum of squares that each row explains */
INLINE void NAME(put_explained)(const row_problem *p, int lane0, const VEC *b, const VEC *num, double *out)
{
    REAL lanes[WIDTH] ALIGNED;
    VEC sum = SET1(0);
    if (!out)
        return;
    for (int k = 0; k < p->n_components; k++)
        sum = FMA(b[k], num[k] + (num[k] - NAME(gram_dot)(p, k, b)), sum);
    STORE(lanes, sum);
    for (int j = 0; j < WIDTH; j++)
        out[lane0 + j] = lanes[j];
}

/* em_steps multiplicative steps; then, if newton_steps is not 0, coordinate descent on the quadratic. */
static void NAME(solve_squares)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, VEC *num, VEC *extra)
{
    VEC *pseudo = extra, *rate = extra + p->stride, *down = rate + p->stride;
    if (rows->pseudo) {
        NAME(load_rows)(rows->pseudo, lane0, p->stride, pseudo);
        NAME(load_rows)(rows->rate, lane0, p->stride, rate);
    }
    for (int i = 0; i < p->em_steps; i++) {
        for (int k = 0; k < p->n_components; k++)
            down[k] = NAME(gram_dot)(p, k, b);
        for (int k = 0; k < p->n_components; k++) {
            VEC up = b[k] * num[k];
            if (rows->pseudo)
                up += pseudo[k], down[k] += rate[k];
            b[k] = VMAX(up / VMAX(down[k], SET1(MU_MIN)), SET1((REAL)p->floor));
        }
    }
    if (p->newton_steps) {
        NAME(linear_term)(p, rows, lane0, num);
        NAME(put_explained)(p, lane0, b, num, rows->loglik_start);
        NAME(descend_quadratic)(p, b, num);
        NAME(put_explained)(p, lane0, b, num, rows->loglik_end);
    }
}

static void NAME(least_squares)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *num = WORK_D(workspace);
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        NAME(linear_pass)(p, s, lane0, num, WORK_A(workspace));
        NAME(solve_squares)(p, rows, lane0, b, num, WORK_A(workspace));
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}

/* The same from num (K, 16), which is summed already. */
static void NAME(least_squares_of_sums)(const row_problem *p, const double *sums, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *num = WORK_D(workspace);
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        REAL lanes[WIDTH] ALIGNED;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        for (int k = 0; k < p->n_components; k++) {
            for (int j = 0; j < WIDTH; j++)
                lanes[j] = (REAL)sums[k * LANES + lane0 + j];
            num[k] = LOAD(lanes);
        }
        NAME(solve_squares)(p, rows, lane0, b, num, WORK_A(workspace));
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}
