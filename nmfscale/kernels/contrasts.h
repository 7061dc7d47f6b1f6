/* Poisson regression of each row of a slice on a held design, and likelihood ratios of equality of its coefficients.
 *
 * min over b > 0 of  h(b) = sum_k (total_k + exposure) b_k - sum_q y_q log(a_q . b) - pseudo sum_k log b_k.  With this prior, h is
 * strictly convex and its minimum is inside.  Steps are relative: b_k <- b_k (1 + t x_k).  In these coordinates the gradient is
 * b_k (total_k + exposure - num_k) - pseudo and the curvature T_kl = b_k H_kl b_l, plus pseudo on the diagonal: at the minimum, that
 * of log b.  Its Cholesky factor needs no safeguard, because no eigenvalue is below pseudo.
 *
 * A contrast compares coefficient k with a weighted mean of others: the minimum subject to b_k = sum_l w_l b_l.  Likelihood ratios
 * have fewer pseudo-counts than the coefficients, because pseudo-counts favour equality.  A row that has ended does not change, so
 * results do not depend on the other rows of a vector. */

#define MOST_STEPS 200                                    /* Newton steps of one minimum */
#define EM_START 3                                        /* EM steps before the Newton steps */
#define PRECISE ((REAL)1e-8)                              /* squared Newton decrement at which the unconstrained minimum ends */
#define ENDED ((REAL)1e-6)                                /* and that of a contrast, of which only the value is needed */
#define LEAVES ((REAL)0.1)                                /* least share of a coefficient that a step leaves */
#define BOUNDED ((REAL)0.4)                               /* squared decrement below which it bounds h - min h; h / pseudo is
                                                           * self-concordant */
#define SELECT(mask, yes, no) ((mask) * (yes) + (SET1(1) - (mask)) * (no))      /* of finite numbers; mask is 0 or 1 */

typedef struct {
    const row_problem *p;
    const slice_counts *s;
    int lane0, K;
    VEC pseudo, residual;                                 /* residual: largest squared decrement at an end */
    VEC *total;                                           /* total_k + exposure */
    VEC *b, *from, *x, *num, *g, *kappa, *A, *H, *T;      /* coefficients, where a step begins, the step, ... */
    VEC *fit, *logs, *fitted, *c, *w, *least, *other;     /* the minimum, its log, its Cholesky factor; contrast and its weights */
} NAME(regression);

/* h at b; H and num of the passes of the counts. */
static VEC NAME(loss)(NAME(regression) *r)
{
    double loglik[LANES] ALIGNED = {0};
    REAL lanes[WIDTH] ALIGNED;
    VEC sum = SET1(0), logs = SET1(0);
    NAME(newton_pass)(r->p, r->s, r->lane0, r->b, r->num, r->A, r->H, loglik);
    for (int k = 0; k < r->K; k++) {
        sum = FMA(r->total[k], r->b[k], sum);
        logs += NAME(vlog)(r->b[k]);
    }
    for (int j = 0; j < WIDTH; j++)
        lanes[j] = (REAL)loglik[r->lane0 + j];
    return FNMA(r->pseudo, logs, sum) - LOAD(lanes);
}

/* T, with this number in place of pseudo, and its Cholesky factor, in place; the reciprocals of the factor's diagonal take the
 * place of the diagonal. */
static void NAME(factorize)(NAME(regression) *r, VEC pseudo)
{
    VEC *T = r->T;
    for (int k = 0; k < r->K; k++)
        for (int l = 0; l <= k; l++) {
            VEC sum = r->b[k] * r->H[PACKED(k, l)] * r->b[l];
            if (l == k)
                sum += pseudo;
            for (int i = 0; i < l; i++)
                sum = FNMA(T[PACKED(k, i)], T[PACKED(l, i)], sum);
            T[PACKED(k, l)] = l < k ? sum * T[PACKED(l, l)] : SET1(1) / VSQRT(VMAX(sum, SET1((REAL)1e-300)));
        }
}

/* v <- C^-1 v, with the factor C; returns |C^-1 v|^2. */
static VEC NAME(solve_lower)(const VEC *C, VEC *v, int K)
{
    VEC squares = SET1(0);
    for (int k = 0; k < K; k++) {
        VEC sum = v[k];
        for (int l = 0; l < k; l++)
            sum = FNMA(C[PACKED(k, l)], v[l], sum);
        v[k] = sum * C[PACKED(k, k)];
        squares = FMA(v[k], v[k], squares);
    }
    return squares;
}

/* g <- the relative Newton step at b, subject to c'b = 0 if there is a contrast; returns the squared decrement. */
static VEC NAME(direction)(NAME(regression) *r, const VEC *c)
{
    VEC *g = r->g, *kappa = r->kappa, squared, both = SET1(0);
    for (int k = 0; k < r->K; k++)
        g[k] = r->pseudo - r->b[k] * (r->total[k] - r->num[k]);
    NAME(factorize)(r, r->pseudo);
    squared = NAME(solve_lower)(r->T, g, r->K);
    if (c) {
        for (int k = 0; k < r->K; k++)
            kappa[k] = c[k] * r->b[k];
        const VEC size = NAME(solve_lower)(r->T, kappa, r->K);
        for (int k = 0; k < r->K; k++)
            both = FMA(kappa[k], g[k], both);
        both = both / size;
        squared = SET1(0);
        for (int k = 0; k < r->K; k++) {
            g[k] = FNMA(both, kappa[k], g[k]);
            squared = FMA(g[k], g[k], squared);
        }
    }
    for (int k = r->K - 1; k >= 0; k--) {
        VEC sum = g[k];
        for (int l = k + 1; l < r->K; l++)
            sum = FNMA(r->T[PACKED(l, k)], g[l], sum);
        g[k] = sum * r->T[PACKED(k, k)];
    }
    return squared;
}

/* Minimises h from b in the live rows, subject to c'b = 0 if there is a contrast, which b fulfils. Returns the minimum: from the
 * last step its value is known up to the third power of the decrement. A row whose minimum is certainly above `enough` ends with a
 * bound that is above it, too. */
static VEC NAME(minimum)(NAME(regression) *r, const VEC *c, VEC live, VEC enough, REAL tolerance)
{
    VEC t = SET1(0), value = SET1(0), found = SET1(0), worst = SET1(0);
    for (int k = 0; k < r->K; k++)
        r->from[k] = r->b[k], r->x[k] = SET1(0);
    for (int i = 0; i < MOST_STEPS && ANY(live); i++) {
        const VEC now = NAME(loss)(r);
        /* a step that raises h is shortened */
        const VEC better = i ? AT_LEAST(FMA(VABS(value), SET1((REAL)1e-13), value), now) : SET1(1);
        const VEC accepted = live * better, squared = NAME(direction)(r, c);
        VEC most = SET1(1 - LEAVES);
        for (int k = 0; k < r->K; k++) {
            r->from[k] = SELECT(accepted, r->b[k], r->from[k]);
            r->x[k] = SELECT(accepted, r->g[k], r->x[k]);
            most = VMAX(most, SET1(0) - r->x[k]);
        }
        value = SELECT(accepted, now, value);
        t = SELECT(accepted, SET1(1 - LEAVES) / most, SET1((REAL)0.25) * t);
        const VEC half = SET1((REAL)0.5) * squared;
        const VEC above = AT_LEAST(SET1(BOUNDED) * r->pseudo, squared) * AT_LEAST(now - squared, enough);
        const VEC ends = accepted * VMAX(AT_LEAST(SET1(tolerance), squared), above);
        found = SELECT(ends, SELECT(above, now - squared, now - half), found);
        worst = SELECT(accepted, SELECT(above, SET1(0), squared), worst);
        for (int k = 0; k < r->K; k++)
            r->b[k] = SELECT(live, FMA(t * r->from[k], r->x[k], r->from[k]), r->b[k]);
        live = live * (SET1(1) - ends);
    }
    r->residual = VMAX(r->residual, worst);
    return SELECT(live, value, found);
}

/* b <- the fit, moved so that coefficient k and its reference are equal and have the same expected counts together. */
static void NAME(merge)(NAME(regression) *r, int k)
{
    const VEC own = r->total[k];
    VEC mean = SET1(0), sizes = SET1(0);
    for (int l = 0; l < r->K; l++) {
        const VEC inside = SET1(1) - AT_LEAST(SET1(0), r->w[l]);
        mean = FMA(r->w[l], r->fit[l], mean);
        sizes = FMA(inside, r->total[l], sizes);
    }
    const VEC merged = FMA(own, r->fit[k], sizes * mean) / (own + sizes), factor = merged / mean;
    for (int l = 0; l < r->K; l++) {
        const VEC inside = SET1(1) - AT_LEAST(SET1(0), r->w[l]);
        r->b[l] = SELECT(inside, factor * r->fit[l], r->fit[l]);
        r->c[l] = SET1(0) - r->w[l];
    }
    r->b[k] = merged;
    r->c[k] = SET1(1);
}

/* The coefficient next to k in log b. */
static VEC NAME(nearest)(NAME(regression) *r, int k)
{
    VEC near = SET1((REAL)1e300), which = SET1(0);
    for (int l = 0; l < r->K; l++) {
        if (l == k)
            continue;
        const VEC apart = VABS(r->logs[l] - r->logs[k]), nearer = SET1(1) - AT_LEAST(apart, near);
        near = SELECT(nearer, apart, near);
        which = SELECT(nearer, SET1((REAL)l), which);
    }
    return which;
}

/* Standard error of log b_k - log(sum_l w_l b_l) by the curvature at the fit. */
static VEC NAME(standard_error)(NAME(regression) *r, int k)
{
    VEC mean = SET1(0);
    for (int l = 0; l < r->K; l++)
        mean = FMA(r->w[l], r->fit[l], mean);
    for (int l = 0; l < r->K; l++)
        r->kappa[l] = SET1((REAL)(l == k)) - r->w[l] * r->fit[l] / mean;
    return VSQRT(NAME(solve_lower)(r->fitted, r->kappa, r->K));
}

/* Wald's lower bound on h - min h at a contrast of two coefficients, from the curvature at the fit: v(r) = r - log(1 + r), where r
 * is |c'b| over its standard error with pseudo^2 in place of pseudo.  For x in relative coordinates, the counts add at least
 * v(|x|_T) and the prior pseudo v(|x|) >= v(pseudo |x|), because both are self-concordant, and v(r) + v(s) >= v(sqrt(r^2 + s^2)). */
static VEC NAME(bound)(NAME(regression) *r, int k, int l)
{
    for (int i = 0; i < r->K; i++)
        r->kappa[i] = SET1((REAL)((i == k) - (i == l))) * r->fit[i];
    const VEC wald = VABS(r->fit[k] - r->fit[l]) / VSQRT(NAME(solve_lower)(r->fitted, r->kappa, r->K));
    return wald - NAME(vlog)(SET1(1) + wald);
}

/* Notes a likelihood ratio of coefficient k, and of the one that it is compared with if that is a single one; returns it. */
static VEC NAME(note_ratio)(NAME(regression) *r, int k, VEC ratio, int single)
{
    ratio = VMAX(ratio, SET1(0));
    for (int l = 0; l < r->K; l++) {
        const VEC concerned = SET1((REAL)(l == k)) + SET1((REAL)single) * r->w[l];
        r->least[l] = SELECT(concerned * AT_LEAST(r->least[l], ratio), ratio, r->least[l]);
    }
    return ratio;
}

/* least_k <- the least likelihood ratio of k and any other coefficient.  A pair whose ratio is certainly above the least ones of
 * both is not computed to the end: only if `bounds` is true, that is if no count is below 1. */
static void NAME(all_pairs)(NAME(regression) *r, VEC fitted, int bounds)
{
    for (int k = 1; k < r->K; k++)
        for (int l = 0; l < k; l++) {
            const VEC known = VMAX(AT_LEAST(SET1((REAL)0.5), VABS(r->other[k] - SET1((REAL)l))),
                                   AT_LEAST(SET1((REAL)0.5), VABS(r->other[l] - SET1((REAL)k))));
            VEC live = SET1(1) - known, enough = SET1((REAL)1e300);
            if (bounds) {
                const VEC most = SET1((REAL)0.5) * VMAX(r->least[k], r->least[l]);
                live *= SET1(1) - AT_LEAST(NAME(bound)(r, k, l), most);
                enough = fitted + most;
            }
            if (!ANY(live))
                continue;
            for (int i = 0; i < r->K; i++)
                r->w[i] = SET1((REAL)(i == l));
            NAME(merge)(r, k);
            const VEC found = NAME(minimum)(r, r->c, live, enough, ENDED);
            NAME(note_ratio)(r, k, SELECT(live, SET1(2) * (found - fitted), SET1((REAL)1e300)), 1);
        }
}

/* Takes EM steps, then Newton steps from b; returns the least h and keeps the fit.  The Cholesky factor is that of T with `ridge` in
 * place of pseudo. */
static VEC NAME(fit_row)(NAME(regression) *r, VEC ridge)
{
    for (int i = 0; i < EM_START; i++) {
        NAME(gradient_pass)(r->p, r->s, r->lane0, r->b, r->num, r->A, NULL);
        for (int k = 0; k < r->K; k++)
            r->b[k] = FMA(r->b[k], r->num[k], r->pseudo) / r->total[k];
    }
    const VEC found = NAME(minimum)(r, NULL, SET1(1), SET1((REAL)1e300), PRECISE);
    for (int k = 0; k < r->K; k++) {
        r->fit[k] = r->b[k];
        r->logs[k] = NAME(vlog)(r->b[k]);
    }
    NAME(loss)(r);
    NAME(factorize)(r, ridge);
    memcpy(r->fitted, r->T, PACKED(r->K, 0) * sizeof(VEC));
    return found;
}

/* w <- the weights of the coefficients that k is compared with. */
static void NAME(compare)(NAME(regression) *r, const contrast_problem *to, int k)
{
    for (int l = 0; l < r->K; l++)
        r->w[l] = to->weights ? SET1((REAL)to->weights[k * r->K + l]) : AT_LEAST(SET1((REAL)0.5), VABS(r->other[k] - SET1((REAL)l)));
}

static void NAME(write)(REAL *out, int lane0, VEC x)
{
    REAL lanes[WIDTH] ALIGNED;
    STORE(lanes, x);
    memcpy(out + lane0, lanes, sizeof lanes);
}

/* Fits the rows of a vector; writes the coefficients, what they are compared with and its error, and the sum of y mu. */
static void NAME(estimates)(NAME(regression) *r, const contrast_problem *to, REAL *out)
{
    const int K = r->K, lane0 = r->lane0;
    VEC products = SET1(0);
    NAME(fit_row)(r, r->pseudo);
    for (int k = 0; k < K; k++) {
        r->other[k] = to->weights ? SET1((REAL)-1) : NAME(nearest)(r, k);
        NAME(compare)(r, to, k);
        NAME(write)(out + k * LANES, lane0, r->fit[k]);
        NAME(write)(out + (K + k) * LANES, lane0, r->other[k]);
        NAME(write)(out + (2 * K + k) * LANES, lane0, NAME(standard_error)(r, k));
    }
    NAME(linear_pass)(r->p, r->s, lane0, r->num, r->A);
    for (int k = 0; k < K; k++)
        products = FMA(r->fit[k], r->num[k], products);
    NAME(write)(out + 5 * K * LANES, lane0, products);
}

/* Fits the rows of a vector again, with the pseudo-counts of the tests, and writes the likelihood ratios. */
static void NAME(ratios)(NAME(regression) *r, const contrast_problem *to, REAL *out)
{
    const int K = r->K;
    const VEC fitted = NAME(fit_row)(r, r->pseudo * r->pseudo);
    for (int k = 0; k < K; k++)
        r->least[k] = SET1((REAL)1e300);
    for (int k = 0; k < K; k++) {
        NAME(compare)(r, to, k);
        NAME(merge)(r, k);
        const VEC least = NAME(minimum)(r, r->c, SET1(1), SET1((REAL)1e300), ENDED);
        NAME(write)(out + (3 * K + k) * LANES, r->lane0, NAME(note_ratio)(r, k, SET1(2) * (least - fitted), !to->weights));
    }
    if (!to->weights)
        NAME(all_pairs)(r, fitted, to->bounds);
    for (int k = 0; k < K; k++)
        NAME(write)(out + (4 * K + k) * LANES, r->lane0, r->least[k]);
}

/* The prior of the rows of a vector, with its mode at their mean coefficients. */
static void NAME(set_prior)(NAME(regression) *r, const contrast_problem *to, double pseudo)
{
    REAL exposure[WIDTH] ALIGNED, total[WIDTH] ALIGNED;
    for (int j = 0; j < WIDTH; j++)
        exposure[j] = (REAL)(pseudo / to->mean[r->lane0 + j]);
    for (int k = 0; k < r->K; k++) {
        for (int j = 0; j < WIDTH; j++)
            total[j] = (REAL)to->total[k * LANES + r->lane0 + j];
        r->total[k] = LOAD(total) + LOAD(exposure);
    }
    r->pseudo = SET1((REAL)pseudo);
}

/* Writes (5 K + 2, 16) numbers: the coefficients; the topic that each is compared with; the standard error of the log of their
 * ratio; the likelihood ratio, 2 (min h under equality - min h); the least likelihood ratio of all topics; then the sum of
 * y mu; and the largest squared Newton decrement at which a minimum ended. */
static void NAME(contrasts)(const row_problem *p, const slice_counts *s, const contrast_problem *to, REAL *out, void *workspace)
{
    const int K = p->n_components, packed = PACKED(K, 0);
    VEC *next = workspace;
    NAME(regression) r = {.p = p, .s = s, .K = K};
    VEC **parts[] = {&r.b, &r.from, &r.x, &r.num, &r.g, &r.kappa, &r.fit, &r.logs, &r.c, &r.w, &r.least, &r.other, &r.total};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, next += p->stride)
        *parts[i] = next;
    r.A = next;
    r.H = r.A + TILE * p->stride;
    r.T = r.H + packed;
    r.fitted = r.T + packed;
    for (r.lane0 = 0; r.lane0 < LANES; r.lane0 += WIDTH) {
        REAL mean[WIDTH] ALIGNED;
        for (int j = 0; j < WIDTH; j++)
            mean[j] = (REAL)to->mean[r.lane0 + j];
        for (int k = 0; k < p->stride; k++)
            r.b[k] = SET1((REAL)(k < K)) * LOAD(mean);
        r.residual = SET1(0);
        NAME(set_prior)(&r, to, to->pseudo);
        NAME(estimates)(&r, to, out);
        NAME(set_prior)(&r, to, to->pseudo_of_tests);
        NAME(ratios)(&r, to, out);
        NAME(write)(out + (5 * K + 1) * LANES, r.lane0, r.residual);
    }
}
