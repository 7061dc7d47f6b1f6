/* Coordinate descent on the rows of one slice: CCD, SCD and scalar Newton. */

/* One coordinate of a descent. First applies the pending change of the previous coordinate, whose gathered values are `before`, to
 * mu; then b_k <- max(floor, b_k - g_k / h_k). `guarded` shortens a decrease by 1 / (1 + lambda), lambda = c |d| sqrt h with
 * c = 1 / sqrt(min y), if lambda > 0.683802 (scalar Newton of Hien and Gillis: never raises the loss). A row's weight is part of y
 * and so of c: a row of weight 2 takes other steps than two equal rows. */
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
    const int64_t n = s->n_entries;
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
        for (int64_t q = 0; q < n; q += TILE) {           /* the gathered rows, transposed: contiguous for each coordinate */
            const int nt = n - q < TILE ? (int)(n - q) : TILE;
            NAME(decode)(p, s, q, nt, lane0, &tile);
            for (int t = 0; t < nt; t++) {
                mu[q + t] = NAME(gather_dot)(p->design, tile.at + t * WIDTH, b, A, stride);
                VEC yt = LOAD(tile.y + t * WIDTH), zero = SET1(1) - AT_LEAST(yt, SET1((REAL)1e-30));
                y[q + t] = yt;
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
                for (int t = 0; t < nt; t++) {
                    tile.mu[t] = SET1(MU_MIN);
                    for (int k = 0; k < K; k++)
                        tile.mu[t] = FMA(b[k], columns[k * n + q + t], tile.mu[t]);
                    STORE(tile.y + t * WIDTH, y[q + t]);
                }
                NAME(add_log)(nt, &tile, lane0, rows->loglik_end);
            }
        NAME(store_rows)(rows->end, lane0, stride, b);
    }
}
