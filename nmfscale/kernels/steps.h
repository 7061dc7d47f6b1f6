/* Steps of the rows of one slice, from the sums of a pass over the counts. */

/* g_k = total_k + rate_k - num_k - pseudo_k / b_k  (Corollary 2: a Gamma prior adds pseudo-counts and a rate) */
INLINE void NAME(gradient)(const row_problem *p, const slice_rows *rows, int lane0, const VEC *b, const VEC *num, VEC *g)
{
    const REAL *total = p->total;
    for (int k = 0; k < p->n_components; k++)
        g[k] = SET1(total[k]) - num[k];
    if (rows->pseudo) {
        VEC *extra = g + 2 * p->stride;                   /* the memory of the gathered tile is free between passes */
        NAME(load_rows)(rows->rate, lane0, p->stride, extra);
        for (int k = 0; k < p->n_components; k++)
            g[k] += extra[k];
        NAME(load_rows)(rows->pseudo, lane0, p->stride, extra);
        for (int k = 0; k < p->n_components; k++)
            g[k] -= extra[k] / VMAX(b[k], SET1((REAL)p->floor));     /* a fit restores zeros at its end */
    }
}

/* kkt = max_k |b_k g_k| over the coordinates that are updated: the KKT residual of a row */
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

/* b_k <- max(b_k (num_k + pseudo_k / b_k) / (total_k + rate_k), floor) for the coordinates that are updated */
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

/* min over d >= -b of g'd + d'Hd / 2 by coordinate descent. Each row stops by its own decrease, so its result does not depend on
 * the other rows of the slice. */
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
            VEC e = VMAX(FNMA(g[k], inverse[k], d[k]), SET1(0) - b[k]) - d[k];
            d[k] += e;
            UNROLL for (int l = 0; l < k; l++)
                g[l] = FMA(e, H[PACKED(k, l)], g[l]);
            UNROLL for (int l = k; l < K; l++)
                g[l] = FMA(e, H[PACKED(l, k)], g[l]);
            most = VMAX(most, e * e * H[PACKED(k, k)]);
        }
        live = AT_LEAST(most, enough);
        if (!ANY(live))
            break;
        UNROLL for (int k = 0; k < K; k++)
            inverse[k] *= live;                           /* a row that has stopped no longer changes */
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

/* b <- max(b + d, floor), where d minimises the quadratic model. */
static void NAME(newton_step)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, const VEC *g, VEC *H, VEC *d)
{
    VEC *spare = d + p->stride;                           /* the memory of the gathered tile is free between passes */
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

/* A row's curvature is stored in 16 bits per entry: its correlations H_kl / sqrt(H_kk H_ll), which are in [0, 1] because no term
 * of H is negative, then the square roots of its diagonal. */
#define UNITS 65535
#define SHRINK (1 - 1.0 / 4096)                           /* outweighs rounding, so that the matrix stays positive definite */
#define BELOW(k, l) ((k) * ((k) - 1) / 2 + (l))

static void NAME(store_curvature)(int n_components, int lane0, const VEC *H, uint16_t *stored, VEC *scale)
{
    for (int k = 0; k < n_components; k++)
        scale[k] = SET1(1) / VSQRT(H[PACKED(k, k)] + SET1((REAL)1e-30));
    for (int k = 0; k < n_components; k++)
        for (int l = 0; l < k; l++) {
            REAL lanes[WIDTH] ALIGNED;
            STORE(lanes, FMA(H[PACKED(k, l)] * scale[k] * scale[l], SET1(UNITS), SET1((REAL)0.5)));
            for (int j = 0; j < WIDTH; j++)
                stored[BELOW(k, l) * LANES + lane0 + j] = (uint16_t)(int32_t)(lanes[j] < UNITS ? lanes[j] : UNITS);
        }
    for (int k = 0; k < n_components; k++)
        NAME(store_halves)(stored + BELOW(n_components, k) * LANES + lane0, VSQRT(H[PACKED(k, k)]));
}

/* Stored correlations times scale_k scale_l, below the diagonal of H. */
INLINE void NAME(below_diagonal)(int n_components, int lane0, VEC *H, const uint16_t *stored, const VEC *scale)
{
    for (int k = 0; k < n_components; k++) {
        const VEC unit = scale[k] * SET1((REAL)(SHRINK / UNITS));
        for (int l = 0; l < k; l++) {
            const NAME(reals) units = NAME(reals_of_16)(stored + BELOW(k, l) * LANES + lane0);
            VEC correlation;
            memcpy(&correlation, &units, sizeof correlation);
            H[PACKED(k, l)] = correlation * unit * scale[l];
        }
    }
}

/* Curvature from stored correlations and the current diagonal, which is in H[0 .. K) at first. */
static void NAME(reuse_curvature)(int n_components, int lane0, VEC *H, const uint16_t *stored, VEC *scale, double margin)
{
    for (int k = n_components - 1; k >= 0; k--) {
        const VEC now = H[k];
        scale[k] = VSQRT(now);
        H[PACKED(k, k)] = now * SET1((REAL)margin);
    }
    NAME(below_diagonal)(n_components, lane0, H, stored, scale);
}

/* Updates stored curvature H from the current numerators alone: D H D with the diagonal matrix D for which (D H D) b = num. Exact
 * curvature satisfies this equation, too (see numerators). A few rounds of scaling by square roots find D. A row whose scaling is
 * far from 1 uses the diagonal (total + rate) / b instead, which makes its step an EM step. */
#define ROUNDS 2
#define FAR 1.5
static void NAME(rescale_curvature)(const row_problem *p, const slice_rows *rows, int lane0, const VEC *b, const VEC *num, VEC *H,
                                   VEC *scale)
{
    const uint16_t *stored = rows->curvature;
    const int K = p->n_components;
    const REAL *total = p->total;
    VEC *moved = scale + p->stride, *found = moved + p->stride, far = SET1(0);
    for (int k = 0; k < K; k++)
        scale[k] = NAME(load_halves)(stored + BELOW(K, k) * LANES + lane0);
    NAME(below_diagonal)(K, lane0, H, stored, scale);
    for (int k = 0; k < K; k++) {
        H[PACKED(k, k)] = scale[k] * scale[k];
        scale[k] = SET1(1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < K; k++)
            moved[k] = scale[k] * b[k];
        NAME(numerators)(H, moved, found, K);
        for (int k = 0; k < K; k++) {
            const VEC least = FMA(num[k], SET1((REAL)1e-6), SET1(MU_MIN)), limit = SET1((REAL)FAR);
            const VEC ratio = num[k] / VMAX(scale[k] * found[k], least);
            if (round == 0)
                far = VMAX(far, VMAX(AT_LEAST(ratio, limit), AT_LEAST(SET1(1), ratio * limit)));
            scale[k] *= VSQRT(ratio);
        }
    }
    VEC *rate = found;
    for (int k = 0; k < K; k++)
        rate[k] = SET1(0);
    if (rows->pseudo)
        NAME(load_rows)(rows->rate, lane0, p->stride, rate);
    for (int k = 0; k < K; k++) {
        const VEC near = (SET1(1) - far) * scale[k];
        for (int l = 0; l < k; l++)
            H[PACKED(k, l)] *= near * scale[l];
        H[PACKED(k, k)] = FMA(far, (SET1(total[k]) + rate[k]) / b[k], H[PACKED(k, k)] * near * scale[k] * SET1((REAL)p->margin));
    }
}

/* Second-order step with curvature D^(1/2) C D^(1/2), where D is the row's own diagonal h and C the correlation that all rows
 * share. With e = D^(1/2) d: min over e >= -D^(1/2) b of (D^(-1/2) g)'e + e'Ce / 2 by coordinate descent. */
static void NAME(shared_step)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, VEC *g, VEC *h, VEC *d)
{
    const int K = p->n_components;
    const REAL *C = p->correlation, *moves = p->moves;
    const VEC enough = SET1((REAL)p->qp_tolerance);
    VEC live = SET1(1), *spare = d + p->stride;           /* the memory of the gathered tile is free between passes */
    if (rows->pseudo) {
        NAME(load_rows)(rows->pseudo, lane0, p->stride, spare);
        for (int k = 0; k < K; k++)
            h[k] += spare[k] / (b[k] * b[k]);
    }
    for (int k = 0; k < K; k++) {
        h[k] = VSQRT(h[k] + SET1((REAL)1e-12));
        g[k] /= h[k];
        d[k] = SET1(0);
    }
    for (int sweep = 0; sweep < p->qp_sweeps && ANY(live); sweep++) {
        VEC most = SET1(0);
        for (int k = 0; k < K; k++) {
            const REAL *c = C + k * K;
            VEC e = (VMAX(d[k] - g[k] * SET1(1 / c[k]), SET1(0) - b[k] * h[k]) - d[k]) * live;
            if (moves)
                e *= SET1(moves[k]);
            if (!ANY(e))                                  /* of many components most are zero and stay zero */
                continue;
            d[k] += e;
            for (int l = 0; l < K; l++)
                g[l] = FMA(e, SET1(c[l]), g[l]);
            most = VMAX(most, e * e * SET1(c[k]));
        }
        live *= AT_LEAST(most, enough);
    }
    for (int k = 0; k < K; k++)
        b[k] = VMAX(b[k] + d[k] / h[k], SET1((REAL)p->floor));
}

INLINE void NAME(second_order_step)(const row_problem *p, const slice_rows *rows, int lane0, VEC *b, VEC *g, VEC *H, VEC *d)
{
    if (p->correlation)
        NAME(shared_step)(p, rows, lane0, b, g, H, d);
    else
        NAME(newton_step)(p, rows, lane0, b, g, H, d);
}
