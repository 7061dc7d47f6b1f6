/* Coordinate descent on rows that explain both counts and labels. The loss is that of the counts plus, summed over the rows B_c of
 * `labels` with mu_c = B_c . b,
 *
 *     down_c mu_c^2 / 2 - up_c mu_c     for least squares (label_squares)
 *     down_c mu_c   - up_c log mu_c     for a divergence
 *
 * The loss of the counts is b'Gb / 2 - b'num (STEP_SQUARES), or b'total - sum y log mu.  Each row may have a linear term `rate`
 * and, with STEP_SQUARES, a matrix `quadratic` in place of G.
 */

/* New value of a coordinate whose loss has derivatives g and q + h, with q constant and h = sum y a^2 / mu^2.  The gradient is
 * concave, so a Newton step upwards never overshoots.  Downwards, each mu keeps at least the share t = b_new / b, so that
 * g d + q d^2 / 2 + h b^2 (t - 1 - log t) bounds the change of the loss from above; the step goes to the minimum of this bound.
 * So no step raises the loss, and no logarithm of a mu is needed. */
INLINE VEC NAME(new_value)(VEC b, VEC g, VEC q, VEC h)
{
    const VEC least = SET1(MU_MIN), zero = SET1(0), one = SET1(1);
    const VEC falls = VMAX(g, zero), curvature = q + h, c = falls + (h - q) * b;
    const VEC root = VSQRT(FMA(c, c, SET1(4) * q * h * b * b)), positive = AT_LEAST(c, zero);
    const VEC num = positive * (SET1(2) * h * b * b) + (one - positive) * (root - c);
    const VEC den = positive * (c + root) + (one - positive) * (SET1(2) * q);
    const VEC rise = AT_LEAST(curvature, least) * (falls - g) / VMAX(curvature, least);
    const VEC rises = AT_LEAST(zero, g);
    return rises * (b + rise) + (one - rises) * (num / VMAX(den, least));
}

/* Adds the derivatives of the labels' loss in coordinate k. */
INLINE void NAME(label_derivatives)(const row_problem *p, const slice_rows *rows, int lane0, int k, const VEC *mu, VEC *g,
                                    VEC *q, VEC *h)
{
    const REAL *B = p->labels, *up = rows->up, *down = rows->down;
    for (int c = 0; c < p->n_labels; c++) {
        const VEC a = SET1(B[(int64_t)c * p->stride + k]), u = LOAD(up + c * LANES + lane0), v = LOAD(down + c * LANES + lane0);
        if (p->label_squares) {
            *g = FMA(a, FNMA(u, SET1(1), v * mu[c]), *g);
            *q = FMA(a * a, v, *q);
        } else {
            const VEC r = a / mu[c], ur = u * r;
            *g += FNMA(u, r, a * v);
            *h = FMA(ur, r, *h);
        }
    }
}

/* Adds the derivatives of the least-squares loss in coordinate k. */
INLINE void NAME(square_derivatives)(const row_problem *p, const slice_rows *rows, int lane0, int k, const VEC *b, VEC *g,
                                     VEC *q)
{
    const REAL *G = p->gram, *own = rows->quadratic;
    const int K = p->n_components;
    if (!own) {
        for (int l = 0; l < K; l++)
            *g = FMA(SET1(G[k * K + l]), b[l], *g);
        *q = SET1(G[k * K + k]);
        return;
    }
    for (int l = 0; l < K; l++)
        *g = FMA(LOAD(own + (l < k ? PACKED(k, l) : PACKED(l, k)) * LANES + lane0), b[l], *g);
    *q = LOAD(own + PACKED(k, k) * LANES + lane0);
}

/* Adds the derivatives of the counts' divergence in coordinate k; first applies the change of the previous coordinate to mu. */
INLINE void NAME(count_derivatives)(int64_t n, const VEC *a, const VEC *before, VEC change, VEC b, const VEC *y, VEC *mu, VEC *g,
                                    VEC *h)
{
    VEC slope = *g, curvature = SET1(0);
    for (int64_t q = 0; q < n; q++) {
        const VEC m = VMAX(FMA(change, before[q], mu[q]), FMA(b, a[q], SET1(MU_MIN))), r = a[q] / m, yr = y[q] * r;
        mu[q] = m;
        slope -= yr;
        curvature = FMA(yr, r, curvature);
    }
    *g = slope, *h = curvature;
}

/* The counts of the rows, their means, and the gathered rows, transposed: contiguous for each coordinate. */
static void NAME(gather_columns)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *A, VEC *y, VEC *mu,
                                 VEC *columns)
{
    NAME(tile) tile;
    for (int64_t q = 0; q < s->n_entries; q += TILE) {
        const int n = s->n_entries - q < TILE ? (int)(s->n_entries - q) : TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            mu[q + t] = NAME(gather_dot)(p->design, tile.at + t * WIDTH, b, A, p->stride);
            y[q + t] = LOAD(tile.y + t * WIDTH);
            for (int k = 0; k < p->n_components; k++)
                columns[k * s->n_entries + q + t] = A[k];
        }
    }
}

/* Makes newton_steps sweeps over the coordinates of every row. */
static void NAME(descend_jointly)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    const int K = p->n_components, T = p->n_labels, squares = p->step == STEP_SQUARES;
    const int64_t n = squares ? 0 : s->n_entries;
    const REAL *total = p->total, *B = p->labels;
    VEC *b = WORK_B(workspace), *line = WORK_G(workspace), *num = WORK_D(workspace), *A = WORK_A(workspace);
    VEC *mu_labels = WORK_H(workspace), *y = mu_labels + T, *mu = y + n, *columns = mu + n;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        VEC change = SET1(0);
        const VEC *before = columns;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        if (squares)
            NAME(linear_pass)(p, s, lane0, num, A);
        else
            NAME(gather_columns)(p, s, lane0, b, A, y, mu, columns);
        for (int k = 0; k < K; k++) {
            line[k] = SET1(total ? total[k] : 0);
            if (squares)
                line[k] -= num[k];
        }
        if (rows->rate) {
            NAME(load_rows)(rows->rate, lane0, p->stride, num);
            for (int k = 0; k < K; k++)
                line[k] += num[k];
        }
        for (int c = 0; c < T; c++) {
            mu_labels[c] = SET1(MU_MIN);
            for (int k = 0; k < K; k++)
                mu_labels[c] = FMA(SET1(B[(int64_t)c * p->stride + k]), b[k], mu_labels[c]);
        }
        for (int step = 0; step < p->newton_steps * K; step++) {
            const int k = step % K;
            VEC g = line[k], q = SET1(0), h = SET1(0);
            if (squares)
                NAME(square_derivatives)(p, rows, lane0, k, b, &g, &q);
            else
                NAME(count_derivatives)(n, columns + k * n, before, change, b[k], y, mu, &g, &h);
            NAME(label_derivatives)(p, rows, lane0, k, mu_labels, &g, &q, &h);
            change = VMAX(NAME(new_value)(b[k], g, q, h), SET1((REAL)p->floor)) - b[k];
            b[k] = VMAX(b[k] + change, SET1((REAL)p->floor));
            before = columns + k * n;
            for (int c = 0; c < T; c++) {
                const VEC a = SET1(B[(int64_t)c * p->stride + k]);
                mu_labels[c] = VMAX(FMA(change, a, mu_labels[c]), FMA(b[k], a, SET1(MU_MIN)));
            }
        }
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}
