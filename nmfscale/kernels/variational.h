/* Mean-field steps of the rows of one slice: q(h) = Dirichlet(gamma) or Gamma(gamma, rate), counts with mean h . a.
 *
 * With theta = exp(E log h), a count at row a of the held factor is divided among the components in proportions
 * phi_k = theta_k a_k / mu, mu = theta . a. Then gamma_k = alpha_k + sum y phi_k = alpha_k + theta_k num_k is optimal, where num
 * is the same as in an EM step.
 */

/* theta, or its logarithm.  Dirichlet: E log h_k = psi(gamma_k) - psi(sum gamma).  Gamma: psi(gamma_k) - log(rate_k), where
 * rate_k is total_k plus the row's rate.  theta is at least MU_MIN.  For any positive theta the next gamma is optimal given phi,
 * and the bound holds. */
static void NAME(expected_log)(const row_problem *p, const slice_rows *rows, int lane0, const VEC *gamma, VEC *theta,
                               VEC *spare, const int logarithm)
{
    const VEC none = SET1(0), least = SET1(MU_MIN);
    const REAL *total = p->total;
    VEC all = none, of_all = none, raised_all = none;
    if (rows->rate)
        NAME(load_rows)(rows->rate, lane0, p->stride, spare);
    if (p->step == STEP_DIRICHLET) {
        for (int k = 0; k < p->n_components; k++)
            all += VMAX(gamma[k], least);
        const NAME(raised) z = NAME(raise)(all);
        of_all = NAME(exp_digamma_raised)(z), raised_all = z.sum;
    }
    for (int k = 0; k < p->n_components; k++) {
        const NAME(raised) z = NAME(raise)(VMAX(gamma[k], least));
        VEC rate = of_all;
        if (p->step == STEP_GAMMA)
            rate = SET1(total[k]);
        if (rows->rate)
            rate += spare[k];
        const VEC ratio = NAME(exp_digamma_raised)(z) / rate, exponent = raised_all - z.sum;
        if (logarithm)
            theta[k] = NAME(vlog)(ratio) + exponent;
        else
            theta[k] = VMAX(ratio * NAME(vexp)(exponent), least);
    }
}

/* x where `mark` is 1, y where it is 0: exactly, for finite numbers. */
#define BLEND(mark, x, y) FMA(mark, x, (SET1(1) - (mark)) * (y))

/* One round: theta from gamma, a pass, gamma from its sums.  A row that is no longer live keeps its gamma and theta. */
static void NAME(infer_once)(const row_problem *p, const slice_counts *s, const slice_rows *rows, int lane0, VEC *theta,
                             VEC *gamma, VEC *num, VEC *A, VEC *live, double *loglik)
{
    const REAL *alpha = p->alpha;
    VEC change = SET1(0);
    NAME(expected_log)(p, rows, lane0, gamma, A, A + p->stride, 0);      /* the memory of the tile is free between passes */
    for (int k = 0; k < p->n_components; k++)
        theta[k] = BLEND(*live, A[k], theta[k]);
    NAME(gradient_pass)(p, s, lane0, theta, num, A, loglik);
    for (int k = 0; k < p->n_components; k++) {
        const VEC next = FMA(theta[k], num[k], SET1(alpha[k]));
        change += VABS(next - gamma[k]);
        gamma[k] = BLEND(*live, next, gamma[k]);
    }
    *live *= AT_LEAST(change, SET1((REAL)(p->tolerance * p->n_components)));
}

/* prior_end[row] = sum_k lgamma(gamma_k) + (alpha_k - gamma_k) log theta_k, with theta of the last pass.  With sum y log mu
 * of that pass it is the row's share of the evidence lower bound at (gamma, phi), phi from theta, without the terms that depend
 * on alpha, sum gamma and rates only.  E log h at gamma does not occur: its factor, alpha_k + sum y phi_k - gamma_k, is zero. */
static void NAME(put_prior)(const row_problem *p, int lane0, const VEC *theta, const VEC *gamma, double *prior)
{
    for (int j = 0; j < WIDTH; j++)
        prior[lane0 + j] = 0;
    for (int k = 0; k < p->n_components; k++) {
        REAL lanes[WIDTH] ALIGNED;
        const VEC alpha = SET1(((const REAL *)p->alpha)[k]);
        STORE(lanes, FMA(alpha - gamma[k], NAME(vlog)(theta[k]), NAME(vlog_gamma)(VMAX(gamma[k], SET1(MU_MIN)))));
        for (int j = 0; j < WIDTH; j++)
            prior[lane0 + j] += (double)lanes[j];
    }
}

/* Repeats rounds on every row of the slice until its mean change of gamma is less than the tolerance.  theta and loglik_end belong
 * to a row's last pass. */
static void NAME(infer)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *theta = WORK_B(workspace), *gamma = WORK_G(workspace), *num = WORK_D(workspace), *A = WORK_A(workspace);
    const int K = p->n_components, stride = p->stride;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        VEC live = SET1(1);
        NAME(load_rows)(rows->start, lane0, stride, gamma);
        for (int k = 0; k < stride; k++)
            theta[k] = k < K ? SET1(1) : gamma[k];        /* padding is copied */
        for (int i = 0; i < p->inner_steps && ANY(live); i++) {
            double seen[LANES] = {0};
            REAL lanes[WIDTH] ALIGNED;
            const int looks = rows->loglik_end || (rows->loglik_start && i == 0);
            STORE(lanes, live);
            NAME(infer_once)(p, s, rows, lane0, theta, gamma, num, A, &live, looks ? seen : NULL);
            for (int lane = lane0; lane < lane0 + WIDTH; lane++) {
                if (rows->loglik_start && i == 0)
                    rows->loglik_start[lane] = seen[lane];
                if (rows->loglik_end && lanes[lane - lane0] != 0)
                    rows->loglik_end[lane] = seen[lane];
            }
        }
        if (rows->prior_end)
            NAME(put_prior)(p, lane0, theta, gamma, rows->prior_end);
        if (rows->theta)
            NAME(store_rows)(rows->theta, lane0, stride, theta);
        if (rows->end)
            NAME(store_rows)(rows->end, lane0, stride, gamma);
        if (rows->log_end) {
            NAME(expected_log)(p, rows, lane0, gamma, theta, A, 1);
            for (int k = K; k < stride; k++)
                theta[k] = SET1(0);
            NAME(store_rows)(rows->log_end, lane0, stride, theta);
        }
    }
}

/* f(x), given its value for ordinary numbers: limits at 0 and infinity, NaN where f is not defined; log Gamma is 0 at 1 and 2. */
static REAL NAME(at_limits)(int function, REAL x, REAL value)
{
    if (function == LOG_GAMMA)
        return x == 1 || x == 2 ? 0 : value;
    if (function == EXP)
        return x > EXP_MOST ? (REAL)INFINITY : x == x ? value : x;
    return x > 0 ? (x < (REAL)INFINITY ? value : x) : x == 0 ? -(REAL)INFINITY : (REAL)NAN;
}

/* P(N > 0) of a binomial number N, given its mean n p and n p^2; p is kept from 0 and 1, where logarithms are not finite. */
static VEC NAME(nonzero)(VEC mean, VEC squares)
{
    const VEC most = SET1((REAL)(1 - 1e-6)), none = SET1(0);
    VEC p = VMAX(squares / VMAX(mean, SET1(MU_MIN)), SET1((REAL)1e-6));
    p = most - VMAX(most - p, none);
    return SET1(1) - NAME(vexp)(VMAX(mean / p * NAME(vlog)(SET1(1) - p), SET1(-80)));
}

/* Applies a function to each of the n numbers of x; FURTHER extrapolates the logarithm: x (x / before)^momentum; NONZERO takes
 * means from x and squares from before. */
static void NAME(any_numbers)(int function, int64_t n, const void *x, const void *before, double momentum, void *out)
{
    const VEC least = SET1(MU_MIN);
    REAL lanes[2][WIDTH] ALIGNED;
    for (int64_t i = 0; i < n; i += WIDTH) {
        const int here = n - i < WIDTH ? (int)(n - i) : WIDTH;
        STORE(lanes[0], SET1(1));
        STORE(lanes[1], SET1(1));
        memcpy(lanes[0], (const REAL *)x + i, here * sizeof(REAL));
        if (before)
            memcpy(lanes[1], (const REAL *)before + i, here * sizeof(REAL));
        VEC value = LOAD(lanes[0]);
        switch (function) {
        case LOG_GAMMA: value = NAME(vlog_gamma)(value); break;
        case DIGAMMA: value = NAME(vdigamma)(value); break;
        case EXP_DIGAMMA: value = NAME(vexp_digamma)(value); break;
        case TRIGAMMA: value = NAME(vtrigamma)(value); break;
        case LOG: value = NAME(vlog)(VMAX(value, SET1(SMALLEST))); break;
        case EXP: value = NAME(vexp)(value); break;
        case NONZERO: value = NAME(nonzero)(value, LOAD(lanes[1])); break;
        default: {
            const VEC moved = NAME(vlog)(VMAX(value, least)) - NAME(vlog)(VMAX(LOAD(lanes[1]), least));
            value *= NAME(vexp)(SET1((REAL)momentum) * moved);
        }
        }
        STORE(lanes[1], value);
        if (function == LOG || function == EXP || function == LOG_GAMMA)
            for (int j = 0; j < here; j++)
                lanes[1][j] = NAME(at_limits)(function, lanes[0][j], lanes[1][j]);
        memcpy((REAL *)out + i, lanes[1], here * sizeof(REAL));
    }
}

/* Logarithms of 64 numbers; returns 0 if one of them is not a positive normal number, and then writes nothing. */
static int NAME(logarithms)(const REAL *x, REAL *out)
{
    int odd = 0;
    for (int j = 0; j < 64; j++)
        odd |= !(x[j] >= SMALLEST) | !(x[j] < (REAL)INFINITY);
    for (int j = 0; !odd && j < 64; j += WIDTH) {
        VEC value;
        memcpy(&value, x + j, sizeof value);
        value = NAME(vlog)(value);
        memcpy(out + j, &value, sizeof value);
    }
    return !odd;
}

static void NAME(elementwise)(int function, int64_t n, const void *x, const void *before, double momentum, void *out)
{
    int64_t done = 0;
    for (; function == LOG && done + 64 <= n; done += 64) {
        const REAL *from = (const REAL *)x + done;
        REAL *to = (REAL *)out + done;
        if (!NAME(logarithms)(from, to))
            NAME(any_numbers)(function, 64, from, NULL, 0, to);
    }
    NAME(any_numbers)(function, n - done, (const REAL *)x + done, before, momentum, (REAL *)out + done);
}
