/* Collapsed variational Bayes of LDA, order zero (CVB0), for the rows of one slice: documents with the words held, or words with
 * the documents held.
 *
 * b are the expected counts of the topics in a row, a those in the held row of an entry; alpha_k and e_k are their priors, and
 * s_k = 1 / (N_k + sum of eta) belongs to topic k. An entry is first shared out by all counts, g_k ~ (b_k + alpha_k) (a_k + e_k) s_k.
 * Then one of its counts leaves all sums, at most what g gave it, and the entry is shared out by the remaining counts:
 *
 *     gamma_k ~ (max(b_k - g_k, 0) + alpha_k) (max(a_k - g_k, 0) + e_k) s_k (1 + g_k s_k),
 *
 * where s (1 + g s) is 1 / (N + sum of eta - g) to first order. So no share needs to be stored.  Without e, a are known
 * probabilities of the words, from which no count leaves.
 */

/* num = sum y gamma, square = sum y gamma^2.  Adds to loglik, unless that is NULL, sum y log of the sum of the terms of gamma. */
static void NAME(collapsed_pass)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *num, VEC *square,
                                 VEC *weight, VEC *A, double *loglik)
{
    const REAL *alpha = p->alpha, *held = p->held_prior, *scale = p->total;
    const int K = p->n_components, stride = p->stride;
    VEC of_prior = SET1(0);
    NAME(tile) tile;
    for (int k = 0; k < stride; k++) {
        num[k] = square[k] = weight[k] = SET1(0);
        if (k < K)
            weight[k] = (b[k] + SET1(alpha[k])) * SET1(scale[k]);
        if (held)
            of_prior = FMA(weight[k], SET1(held[k]), of_prior);
    }
    for (int64_t q = 0; q < s->n_entries; q += SHORT_TILE) {
        const int n = s->n_entries - q < SHORT_TILE ? (int)(s->n_entries - q) : SHORT_TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            VEC *a = A + t * stride;
            const VEC mu = NAME(gather_dot)(p->design, tile.at + t * WIDTH, weight, a, stride) + of_prior;
            const VEC y = LOAD(tile.y + t * WIDTH), none = SET1(0);
            const VEC leaving = (y - VMAX(y - SET1(1), none)) / mu;           /* one count, or all of it if it is smaller */
            VEC all = SET1(MU_MIN);
            for (int k = 0; k < K; k++) {
                const VEC scaled = SET1(scale[k]), e = SET1(held ? held[k] : 0), g = weight[k] * (a[k] + e) * leaving;
                const VEC rest = (VMAX(b[k] - g, none) + SET1(alpha[k])) * scaled;
                if (held)
                    a[k] = (VMAX(a[k] - g, none) + e) * FMA(g, scaled, SET1(1));
                a[k] *= rest;
                all += a[k];
            }
            tile.mu[t] = all, tile.r[t] = SET1(1) / all;
        }
        if (loglik)
            NAME(add_log)(n, &tile, lane0, loglik);
        for (int k = 0; k < stride; k += GROUP) {
            VEC sum[GROUP], of_squares[GROUP];
            UNROLL for (int i = 0; i < GROUP; i++)
                sum[i] = num[k + i], of_squares[i] = square[k + i];
            for (int t = 0; t < n; t++)
                UNROLL for (int i = 0; i < GROUP; i++) {
                    const VEC gamma = A[t * stride + k + i] * tile.r[t], part = LOAD(tile.y + t * WIDTH) * gamma;
                    sum[i] += part;
                    of_squares[i] = FMA(part, gamma, of_squares[i]);
                }
            UNROLL for (int i = 0; i < GROUP; i++)
                num[k + i] = sum[i], square[k + i] = of_squares[i];
        }
    }
}

/* Repeats passes over every row until its mean change is less than the tolerance.  loglik_start belongs to the first pass, squares
 * to the last one of the slice. */
static void NAME(share_out)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *weight = WORK_G(workspace), *num = WORK_D(workspace), *A = WORK_A(workspace);
    VEC *square = WORK_H(workspace);
    const int K = p->n_components, stride = p->stride;
    if (rows->loglik_start)
        memset(rows->loglik_start, 0, LANES * sizeof(double));
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        VEC live = SET1(1);
        NAME(load_rows)(rows->start, lane0, stride, b);
        for (int i = 0; i < p->inner_steps && ANY(live); i++) {
            VEC change = SET1(0);
            NAME(collapsed_pass)(p, s, lane0, b, num, square, weight, A, i ? NULL : rows->loglik_start);
            for (int k = 0; k < K; k++) {
                change += VABS(num[k] - b[k]);
                b[k] = BLEND(live, num[k], b[k]);
            }
            live *= AT_LEAST(change, SET1((REAL)(p->tolerance * K)));
        }
        if (rows->end)
            NAME(store_rows)(rows->end, lane0, stride, b);
        if (rows->squares)
            NAME(store_rows)(rows->squares, lane0, stride, square);
    }
}
