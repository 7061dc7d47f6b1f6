/* Sums over dense targets Y (n, m) ~ S B' with weights w (n).  With mu = s . b, r is y for least squares, and y / mu if `divides`.
 * B is given transposed (K, stride), with zeros beyond m.  The order of each sum does not depend on WIDTH. */

#define TARGET_ROWS 8                                     /* rows that are read together, so that sums stay in registers */
#define MOST_SMALL 8                                      /* number of components up to which it is known to the compiler */

INLINE VEC load_numbers(const double *p)
{
    VEC x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* The last n numbers of a row of Y, and zeros.  Not inline, because the loops over targets have many copies. */
static __attribute__((noinline)) void load_last(const double *p, int64_t n, double *lanes)
{
    for (int64_t j = 0; j < WIDTH; j++)
        lanes[j] = j < n ? p[j] : 0;
}

INLINE VEC load_targets(const double *p, int64_t n)
{
    double lanes[WIDTH] ALIGNED;
    if (n >= WIDTH)
        return load_numbers(p);
    load_last(p, n, lanes);
    return LOAD(lanes);
}

INLINE VEC target_ratio(VEC y, const double *s, const VEC *b, const int K)
{
    VEC mu = SET1(0);
    UNROLL for (int k = 0; k < K; k++)
        mu = FMA(SET1(s[k]), b[k], mu);
    return y / VMAX(mu, SET1(MU_MIN));
}

/* sums (K, stride) += sum_i w_i s_ik r_ij, and loss (16) += sum w y^2, or w y (log r - 1), for columns first <= j < last */
INLINE void sum_targets(const target_problem *t, int64_t first, int64_t last, double *sums, double *loss, VEC *b, VEC *sum,
                        const int K, const int divides)
{
    for (int64_t i0 = 0; i0 < t->n; i0 += TARGET_ROWS)
        for (int64_t j = first; j < last; j += WIDTH) {
            VEC total = load_numbers(loss + j % LANES);
            UNROLL for (int k = 0; k < K; k++) {
                b[k] = load_numbers(t->B + k * t->stride + j);
                sum[k] = load_numbers(sums + k * t->stride + j);
            }
            for (int64_t i = i0; i < t->n && i < i0 + TARGET_ROWS; i++) {
                const double *s = t->S + i * K;
                const VEC y = load_targets(t->Y + i * t->m + j, t->m - j), w = SET1(t->w[i]);
                const VEC r = divides ? target_ratio(y, s, b, K) : y, weighted = w * r;
                const VEC each = divides ? y * (NAME(vlog)(VMAX(r, SET1(MU_MIN))) - SET1(1)) : y * y;
                total = FMA(w, each, total);
                UNROLL for (int k = 0; k < K; k++)
                    sum[k] = FMA(SET1(s[k]), weighted, sum[k]);
            }
            memcpy(loss + j % LANES, &total, sizeof total);
            UNROLL for (int k = 0; k < K; k++)
                memcpy(sums + k * t->stride + j, sum + k, sizeof(VEC));
        }
}

/* out (n, K) = sum_j r_ij b_jk; 16 neighbouring columns are added to 16 sums, which are then added in their order */
INLINE void multiply_targets(const target_problem *t, int64_t first, int64_t last, double *out, VEC *b, VEC *sum, const int K,
                             const int divides)
{
    for (int64_t i = first; i < last; i++) {
        UNROLL for (int k = 0; k < K * LANES / WIDTH; k++)
            sum[k] = SET1(0);
        for (int64_t j0 = 0; j0 < t->m; j0 += LANES)
            UNROLL for (int l = 0; l < LANES / WIDTH; l++) {
                const int64_t j = j0 + l * WIDTH;
                if (j >= t->m)
                    break;
                UNROLL for (int k = 0; k < K; k++)
                    b[k] = load_numbers(t->B + k * t->stride + j);
                const VEC y = load_targets(t->Y + i * t->m + j, t->m - j);
                const VEC r = divides ? target_ratio(y, t->S + i * K, b, K) : y;
                UNROLL for (int k = 0; k < K; k++)
                    sum[k * (LANES / WIDTH) + l] = FMA(r, b[k], sum[k * (LANES / WIDTH) + l]);
            }
        UNROLL for (int k = 0; k < K; k++) {
            double lanes[LANES], total = 0;
            memcpy(lanes, sum + k * (LANES / WIDTH), sizeof lanes);
            UNROLL for (int l = 0; l < LANES; l++)
                total += lanes[l];
            out[i * K + k] = total;
        }
    }
}

#define TARGETS(K, b, sum)                                                                                                \
    if (sums && t->divides)                                                                                               \
        sum_targets(t, first, last, out, loss, b, sum, K, 1);                                                             \
    else if (sums)                                                                                                        \
        sum_targets(t, first, last, out, loss, b, sum, K, 0);                                                             \
    else if (t->divides)                                                                                                  \
        multiply_targets(t, first, last, out, b, sum, K, 1);                                                              \
    else                                                                                                                  \
        multiply_targets(t, first, last, out, b, sum, K, 0);

#define TARGETS_CASE(K)                                                                                                   \
    case K: {                                                                                                             \
        VEC b[MOST_SMALL], sum[MOST_SMALL * LANES / WIDTH];                                                               \
        TARGETS(K, b, sum)                                                                                                \
        return;                                                                                                           \
    }

/* `sums` of columns first to last, or products of rows first to last; `room` holds 2 K LANES numbers, and a cache
 * line more. */
static void targets_f64(const target_problem *t, int sums, int64_t first, int64_t last, double *out, double *loss, double *room)
{
    VEC *const b = (VEC *)(((uintptr_t)room + 63) / 64 * 64), *const sum = b + t->K;
    switch (t->K) {
        TARGETS_CASE(1) TARGETS_CASE(2) TARGETS_CASE(3) TARGETS_CASE(4)
        TARGETS_CASE(5) TARGETS_CASE(6) TARGETS_CASE(7) TARGETS_CASE(8)
    }
    TARGETS(t->K, b, sum)
}
