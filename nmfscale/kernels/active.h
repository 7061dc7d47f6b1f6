/* Solves rows one after the other, each by Newton steps on its active set of components.
 *
 * min over b >= 0 of  sum_k u_k b_k - sum_j y_j log(a_j . b) - sum_k s_k log b_k,  u = total + rate, s = pseudo.  The active set
 * of a round contains the components above zero, and zeros that the gradient would raise.  Its curvature is exact.  A component
 * whose pseudo-counts outweigh its counts takes an EM step instead.  A line search on the derivative prevents a rise of the loss.
 * Loops over components are element-wise and dot products have a fixed order, so results do not depend on the vector width. */

#define PAD(n) (((n) + LANES - 1) / LANES * LANES)
#define CHAINS 4                                          /* sums side by side in a dot product */
#define PRUNED 0.5                                        /* components below this share of the mean expected counts start at 0 */
#define COVERED 0.5                                       /* share of each mean that the remaining components must explain */
#define RAISED ((REAL)(REAL_IS_FLOAT ? 1e-4 : 1e-7))      /* tolerance on a negative gradient of a zero, relative to u_k */
#define STRONGEST 0.25                                    /* a zero enters the set if g / u is at least this share of the lowest */
#define OUTWEIGHED 0.25                                   /* least counts of a component in the set, relative to pseudo-counts */
#define KEEPS 0.1                                         /* least share of b_k that a step leaves, if it has pseudo-counts */
#define FLAT 0.1                                          /* share of the initial derivative at which a line search stops */
#define SHORTENED 30                                      /* largest number of shortenings of a step */

typedef struct {
    const REAL *design;
    int K, stride, n_set;
    int64_t n;
    REAL *b, *num, *total, *pseudo, *d, *g, *least;       /* (PAD(K)); g and least, the lower bound of d, hold the set only */
    REAL *H, *tile;                                       /* (K, PAD(K)) and (TILE, PAD(K)), for the set */
    REAL *y, *mu, *slope;                                 /* (n) counts, expected counts, and their change along a step */
    int32_t *set, *at;
} NAME(one_row);

typedef REAL NAME(chain) __attribute__((vector_size(GROUP * sizeof(REAL))));

static REAL NAME(dot)(const REAL *a, const REAL *b, int n)
{
    NAME(chain) sum[CHAINS] = {{0}}, x, z;
    REAL all[GROUP];
    int k = 0;
    for (; k + CHAINS * GROUP <= n; k += CHAINS * GROUP)
        UNROLL for (int c = 0; c < CHAINS; c++) {
            memcpy(&x, a + k + c * GROUP, sizeof x);
            memcpy(&z, b + k + c * GROUP, sizeof z);
            sum[c] += x * z;
        }
    for (int c = 0; k < n; k += GROUP, c++) {
        memcpy(&x, a + k, sizeof x);
        memcpy(&z, b + k, sizeof z);
        sum[c] += x * z;
    }
    x = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    memcpy(all, &x, sizeof all);
    return (all[0] + all[1]) + (all[2] + all[3]);
}

INLINE void NAME(add_scaled)(REAL *restrict out, const REAL *restrict a, REAL by, int n)
{
    for (int k = 0; k < n; k++)
        out[k] += by * a[k];
}

/* mu and num at b. */
static void NAME(means)(NAME(one_row) *w)
{
    memset(w->num, 0, PAD(w->K) * sizeof(REAL));
    for (int64_t j = 0; j < w->n; j++) {
        const REAL *a = w->design + (int64_t)w->at[j] * w->stride;
        w->mu[j] = NAME(dot)(a, w->b, w->stride) + MU_MIN;
        NAME(add_scaled)(w->num, a, w->y[j] / w->mu[j], w->stride);
    }
}

static REAL NAME(slope_of)(const NAME(one_row) *w, int k)
{
    REAL g = w->total[k] - w->num[k];
    return w->pseudo[k] > 0 ? g - w->pseudo[k] / w->b[k] : g;
}

/* Starts a row with few components: the large ones, and for each count that these leave unexplained its best component. */
static void NAME(prune)(NAME(one_row) *w)
{
    REAL size = 0;
    for (int k = 0; k < w->K; k++)
        size += w->b[k] * w->total[k];
    for (int k = 0; k < w->K; k++)                        /* d holds the components that remain */
        w->d[k] = w->pseudo[k] > 0 || w->b[k] * w->total[k] * w->K >= size * (REAL)PRUNED ? w->b[k] : 0;
    for (int64_t j = 0; j < w->n; j++) {
        const REAL *a = w->design + (int64_t)w->at[j] * w->stride;
        int best = 0;
        if (NAME(dot)(a, w->d, w->stride) >= w->mu[j] * (REAL)COVERED)
            continue;
        for (int k = 1; k < w->K; k++)
            if (a[k] * w->b[k] > a[best] * w->b[best])
                best = k;
        w->d[best] = w->b[best];
    }
    memcpy(w->b, w->d, w->K * sizeof(REAL));
}

/* Chooses the active set, and writes the steps of other components to d. Returns the largest |b g|, or -1 if a zero must be
 * raised. */
static REAL NAME(choose)(NAME(one_row) *w)
{
    REAL worst = 0, lowest = 0;
    for (int k = 0; k < w->K; k++) {
        const REAL g = NAME(slope_of)(w, k), residual = w->b[k] * g;
        worst = residual > worst ? residual : -residual > worst ? -residual : worst;
        if (w->b[k] <= 0 && g < lowest * w->total[k])
            lowest = g / w->total[k];
    }
    w->n_set = 0;
    for (int k = 0; k < w->K; k++) {
        const REAL g = NAME(slope_of)(w, k), s = w->pseudo[k];
        w->d[k] = 0;
        if (s > 0 ? w->b[k] * w->num[k] >= s * (REAL)OUTWEIGHED
                  : w->b[k] > 0 || (lowest < -RAISED && g <= lowest * (REAL)STRONGEST * w->total[k]))
            w->set[w->n_set++] = k;
        else if (s > 0)
            w->d[k] = (w->b[k] * w->num[k] + s) / w->total[k] - w->b[k];
    }
    return lowest < -RAISED ? -1 : worst;
}

/* H = sum y a a' / mu^2 of the active set; rows are padded to a multiple of LANES. */
static void NAME(curvature_of_set)(NAME(one_row) *w)
{
    const int wide = PAD(w->n_set), high = (w->n_set + GROUP - 1) / GROUP * GROUP;
    memset(w->H, 0, (size_t)high * wide * sizeof(REAL));
    for (int64_t j0 = 0; j0 < w->n; j0 += TILE) {
        const int n = w->n - j0 < TILE ? (int)(w->n - j0) : TILE;
        for (int t = 0; t < n; t++) {
            const REAL *a = w->design + (int64_t)w->at[j0 + t] * w->stride, mu = w->mu[j0 + t];
            const REAL root = (REAL)sqrt(w->y[j0 + t]) / mu;
            REAL *row = w->tile + t * wide;
            for (int i = 0; i < w->n_set; i++)
                row[i] = a[w->set[i]] * root;
            for (int i = w->n_set; i < wide; i++)
                row[i] = 0;
        }
        for (int k = 0; k < high; k += GROUP)
            for (int l = 0; l < k + GROUP; l += WIDTH) {
                VEC c[GROUP];
                UNROLL for (int i = 0; i < GROUP; i++)
                    c[i] = LOAD(w->H + (size_t)(k + i) * wide + l);
                for (int t = 0; t < n; t++) {
                    const REAL *row = w->tile + t * wide;
                    const VEC a = LOAD(row + l);
                    UNROLL for (int i = 0; i < GROUP; i++)
                        c[i] = FMA(SET1(row[k + i]), a, c[i]);
                }
                UNROLL for (int i = 0; i < GROUP; i++)
                    STORE(w->H + (size_t)(k + i) * wide + l, c[i]);
            }
    }
    for (int k = 0; k < w->n_set; k++)                    /* the upper triangle */
        for (int l = 0; l < k; l++)
            w->H[(size_t)l * wide + k] = w->H[(size_t)k * wide + l];
}

/* d on the active set: min of g'd + d'Hd / 2 over b + d >= 0 by coordinate descent. */
static void NAME(step_of_set)(const row_problem *p, NAME(one_row) *w)
{
    const int wide = PAD(w->n_set);
    for (int i = 0; i < w->n_set; i++) {
        const int k = w->set[i];
        const REAL h = w->H[(size_t)i * wide + i] + (w->pseudo[k] > 0 ? w->pseudo[k] / (w->b[k] * w->b[k]) : 0);
        w->H[(size_t)i * wide + i] = h + (REAL)1e-12;
        w->g[i] = NAME(slope_of)(w, k);
        w->least[i] = -w->b[k] * (REAL)(w->pseudo[k] > 0 ? 1 - KEEPS : 1);        /* lower bound of d */
    }
    for (int i = w->n_set; i < wide; i++)
        w->g[i] = 0;
    for (int sweep = 0; sweep < p->qp_sweeps; sweep++) {
        REAL most = 0;
        for (int i = 0; i < w->n_set; i++) {
            const REAL *h = w->H + (size_t)i * wide, old = w->d[w->set[i]], to = old - w->g[i] / h[i];
            const REAL e = (to > w->least[i] ? to : w->least[i]) - old;
            if (e == 0)
                continue;
            w->d[w->set[i]] = old + e;
            NAME(add_scaled)(w->g, h, e, wide);
            most = e * e * h[i] > most ? e * e * h[i] : most;
        }
        if (most < (REAL)p->qp_tolerance)
            break;
    }
}

/* Derivative of the loss along d at b + t d. */
static REAL NAME(derivative)(const NAME(one_row) *w, REAL t)
{
    REAL sum = 0;
    for (int k = 0; k < w->K; k++) {
        if (w->d[k] != 0)
            sum += w->d[k] * (w->total[k] - (w->pseudo[k] > 0 ? w->pseudo[k] / (w->b[k] + t * w->d[k]) : 0));
    }
    for (int64_t j = 0; j < w->n; j++) {
        const REAL mu = w->mu[j] + t * w->slope[j];
        sum -= w->y[j] * w->slope[j] / (mu > MU_MIN ? mu : MU_MIN);
    }
    return sum;
}

/* Line search: moves b along d as far as the loss falls. */
static void NAME(line_search)(NAME(one_row) *w)
{
    REAL t = 1;
    for (int64_t j = 0; j < w->n; j++)
        w->slope[j] = NAME(dot)(w->design + (int64_t)w->at[j] * w->stride, w->d, w->stride);
    const REAL first = NAME(derivative)(w, 0);
    for (int i = 0; i < SHORTENED; i++) {
        const REAL now = NAME(derivative)(w, t);
        if (!(now > -first * (REAL)FLAT))
            break;
        const REAL part = first < 0 ? first / (first - now) : (REAL)0.1;
        t *= part > (REAL)0.1 ? part : (REAL)0.1;
    }
    for (int k = 0; k < w->K; k++) {
        const REAL to = w->b[k] + t * w->d[k];
        w->b[k] = to > 0 ? to : 0;
    }
}

static REAL NAME(count_at)(const slice_counts *s, int64_t i)
{
    switch (s->count_kind) {
    case COUNT_UINT8: return (REAL)((const uint8_t *)s->count)[i];
    case COUNT_UINT16: return (REAL)((const uint16_t *)s->count)[i];
    case COUNT_FLOAT32: return (REAL)((const float *)s->count)[i];
    default: return (REAL)((const double *)s->count)[i];
    }
}

static void NAME(take_row)(const row_problem *p, const slice_counts *s, const slice_rows *rows, int lane, NAME(one_row) *w)
{
    const REAL *moves = p->moves, *total = p->total;
    const size_t first = (size_t)lane * p->stride;
    const int padded = PAD(w->K);
    w->n = 0;
    for (int64_t q = 0; q < s->n_entries; q++) {
        const int64_t i = q * LANES + lane;
        const REAL y = NAME(count_at)(s, i);
        if (y > 0) {
            w->at[w->n] = s->index_bytes == 2 ? ((const uint16_t *)s->index)[i] : ((const int32_t *)s->index)[i];
            w->y[w->n++] = y;
        }
    }
    for (int k = 0; k < padded; k++) {
        const int inside = k < w->K && (!moves || moves[k] != 0);
        w->b[k] = inside ? ((const REAL *)rows->start)[first + k] : 0;
        w->total[k] = inside ? total[k] + (rows->rate ? ((const REAL *)rows->rate)[first + k] : 0) : 1;
        w->pseudo[k] = inside && rows->pseudo ? ((const REAL *)rows->pseudo)[first + k] : 0;
        w->d[k] = 0;
    }
}

/* Takes em_steps EM steps, then at most newton_steps Newton steps on active sets, until |b g| is at most `tolerance` times the sum
 * of the row's counts and pseudo-counts. */
static void NAME(solve_row)(const row_problem *p, NAME(one_row) *w)
{
    const REAL *moves = p->moves;
    REAL size = 0;
    for (int64_t j = 0; j < w->n; j++)
        size += w->y[j];
    for (int k = 0; k < w->K; k++)
        size += w->pseudo[k];
    for (int i = 0; i < p->em_steps; i++) {
        NAME(means)(w);
        for (int k = 0; k < w->K; k++)
            w->b[k] = (w->b[k] * w->num[k] + w->pseudo[k]) / w->total[k];
    }
    NAME(means)(w);
    NAME(prune)(w);
    for (int i = 0; i < p->newton_steps; i++) {
        NAME(means)(w);
        for (int k = 0; moves && k < w->K; k++)
            w->num[k] *= moves[k];                        /* held coordinates are zero and are never raised */
        const REAL worst = NAME(choose)(w);
        if (worst >= 0 && worst <= (REAL)p->tolerance * size)
            break;
        NAME(curvature_of_set)(w);
        NAME(step_of_set)(p, w);
        NAME(line_search)(w);
    }
}

static void NAME(solve)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    const size_t padded = PAD(p->n_components), n = PAD(s->n_entries);
    NAME(one_row) w = {.design = p->design, .K = p->n_components, .stride = p->stride};
    REAL *next = workspace, **parts[] = {&w.b, &w.num, &w.total, &w.pseudo, &w.d, &w.g, &w.least};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, next += padded)
        *parts[i] = next;
    w.H = next;
    w.tile = w.H + padded * padded;
    w.y = w.tile + TILE * padded;
    w.mu = w.y + n;
    w.slope = w.mu + n;
    w.set = (int32_t *)(w.slope + n);
    w.at = w.set + padded;
    for (int lane = 0; lane < LANES; lane++) {
        REAL *end = (REAL *)rows->end + (size_t)lane * p->stride;
        NAME(take_row)(p, s, rows, lane, &w);
        if (w.n || rows->pseudo)
            NAME(solve_row)(p, &w);
        else
            memset(w.b, 0, padded * sizeof(REAL));
        memcpy(end, w.b, p->n_components * sizeof(REAL));
        memset(end + p->n_components, 0, (p->stride - p->n_components) * sizeof(REAL));
    }
}
