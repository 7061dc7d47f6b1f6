/* Least squares: min over b >= 0 of  b'Gb / 2 - b'num  for the rows of one slice, with G = D'D of the held factor, num = sum y a.
 *
 * The product D b of a row is never formed.  A row may have extra terms pseudo_k and rate_k: a multiplicative step is then
 * b_k <- (b_k num_k + pseudo_k) / ((G b)_k + rate_k).
 */

/* num = sum y a over the counts of each row */
static void NAME(linear_pass)(const row_problem *p, const slice_counts *s, int lane0, VEC *num)
{
    const REAL *design = p->design;
    NAME(tile) tile;
    for (int k = 0; k < p->stride; k++)
        num[k] = SET1(0);
    for (int64_t q = 0; q < s->n_entries; q += TILE) {
        const int n = s->n_entries - q < TILE ? (int)(s->n_entries - q) : TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int k = 0; k < p->stride; k += GROUP) {
            VEC sum[GROUP];
            UNROLL for (int i = 0; i < GROUP; i++)
                sum[i] = num[k + i];
            for (int t = 0; t < n; t++) {
                VEC a[GROUP];
                const VEC y = LOAD(tile.y + t * WIDTH);
                NAME(gather4)(design + k, tile.at + t * WIDTH, a);
                UNROLL for (int i = 0; i < GROUP; i++)
                    sum[i] = FMA(y, a[i], sum[i]);
            }
            UNROLL for (int i = 0; i < GROUP; i++)
                num[k + i] = sum[i];
        }
    }
}

/* out = G b */
INLINE void NAME(gram_times)(const row_problem *p, const VEC *b, VEC *out)
{
    const REAL *G = p->gram;
    const int K = p->n_components;
    for (int k = 0; k < K; k++) {
        VEC sum = SET1(0);
        for (int l = 0; l < K; l++)
            sum = FMA(SET1(G[k * K + l]), b[l], sum);
        out[k] = sum;
    }
}

/* em_steps multiplicative steps; then, if newton_steps is not 0, coordinate descent on the quadratic to qp_tolerance. */
static void NAME(least_squares)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const REAL *G = p->gram;
    const int K = p->n_components;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        NAME(linear_pass)(p, s, lane0, d);
        for (int i = 0; i < p->em_steps; i++) {
            VEC *pseudo = A, *rate = A + p->stride;
            NAME(gram_times)(p, b, g);
            if (rows->pseudo) {
                NAME(load_rows)(rows->pseudo, lane0, p->stride, pseudo);
                NAME(load_rows)(rows->rate, lane0, p->stride, rate);
            }
            for (int k = 0; k < K; k++) {
                VEC up = b[k] * d[k], down = g[k];
                if (rows->pseudo)
                    up += pseudo[k], down += rate[k];
                b[k] = VMAX(up / VMAX(down, SET1(MU_MIN)), SET1((REAL)p->floor));
            }
        }
        if (p->newton_steps) {
            NAME(gram_times)(p, b, g);
            for (int k = 0; k < K; k++) {
                g[k] -= d[k];
                for (int l = 0; l <= k; l++)
                    H[PACKED(k, l)] = SET1(G[k * K + l]);
            }
            NAME(newton_step)(p, rows, lane0, b, g, H, d);
        }
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}
