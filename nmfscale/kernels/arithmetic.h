/* Computations on one slice, for one REAL and one instruction set (see simd.h and slices.h). */
#include "passes.h"
#include "steps.h"
#include "coordinate_descent.h"
#include "variational.h"
#include "collapsed.h"
#include "squares.h"
#include "joint.h"
#include "active.h"

/* Updates every row of the slice: em_steps EM steps, then newton_steps second-order steps; or mean-field, collapsed or
 * least-squares steps, as p->step says. */
static void NAME(update_rows)(const row_problem *p, const slice_counts *s, const slice_rows *rows, void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int em_steps = s->n_entries <= p->em_longest ? p->em_steps : 0;
    const int mode = rows->curvature ? rows->curvature_mode : CURVATURE_FRESH;
    if (p->step == STEP_SQUARES) {
        NAME(least_squares)(p, s, rows, workspace);
        return;
    }
    if (p->step == STEP_COLLAPSED) {
        NAME(share_out)(p, s, rows, workspace);
        return;
    }
    if (p->step != STEP_FACTOR) {
        NAME(infer)(p, s, rows, workspace);
        return;
    }
    if (rows->loglik_start)
        memset(rows->loglik_start, 0, LANES * sizeof(double));
    if (rows->loglik_end)
        memset(rows->loglik_end, 0, LANES * sizeof(double));
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        double *loglik = rows->loglik_start, *kkt = rows->kkt_start;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        for (int i = 0; i < em_steps; i++) {
            NAME(gradient_pass)(p, s, lane0, b, d, A, loglik);
            if (kkt) {
                NAME(gradient)(p, rows, lane0, b, d, g);
                NAME(put_kkt)(p, lane0, b, g, kkt);
            }
            NAME(em_step)(p, rows, lane0, b, d, A);
            loglik = kkt = NULL;
        }
        for (int i = 0; i < p->newton_steps; i++) {
            if (mode == CURVATURE_RESCALE) {
                NAME(gradient_pass)(p, s, lane0, b, d, A, loglik);
                NAME(rescale_curvature)(p, rows, lane0, b, d, H, A);
            } else if (p->correlation || mode == CURVATURE_REUSE) {
                NAME(diagonal_pass)(p, s, lane0, b, d, A, H, loglik);
                if (!p->correlation)
                    NAME(reuse_curvature)(p->n_components, lane0, H, rows->curvature, A, p->margin);
            } else {
                NAME(newton_pass)(p, s, lane0, b, d, A, H, loglik);
                if (mode == CURVATURE_STORE)
                    NAME(store_curvature)(p->n_components, lane0, H, rows->curvature, A);
            }
            NAME(gradient)(p, rows, lane0, b, d, g);
            if (kkt)
                NAME(put_kkt)(p, lane0, b, g, kkt);
            NAME(second_order_step)(p, rows, lane0, b, g, H, d);
            loglik = kkt = NULL;
        }
        if (rows->loglik_end || rows->kkt_end) {
            NAME(gradient_pass)(p, s, lane0, b, d, A, rows->loglik_end);
            NAME(gradient)(p, rows, lane0, b, d, g);
            if (rows->kkt_end)
                NAME(put_kkt)(p, lane0, b, g, rows->kkt_end);
        }
        if (rows->end)
            NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}

/* Adds the statistics that a step needs to out: num (K, 16) for GRADIENT, num and the diagonal of H (2 K, 16) for DIAGONAL, or H
 * (K (K + 1) / 2, 16) for FULL, from which num = H b follows. loglik_start receives sum y log mu, except with DIAGONAL. With
 * STEP_SQUARES, GRADIENT is sum y a; with STEP_COLLAPSED, DIAGONAL is sum y gamma, then sum y gamma^2. */
static void NAME(sums)(const row_problem *p, const slice_counts *s, const slice_rows *rows, int wanted, double *out,
                       void *workspace)
{
    VEC *b = WORK_B(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int K = p->n_components, n_num = wanted == FULL ? 0 : K;
    const int n_curvature = wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? K : 0;
    if (rows->loglik_start)
        memset(rows->loglik_start, 0, LANES * sizeof(double));
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        REAL lanes[WIDTH] ALIGNED;
        if (rows->start)
            NAME(load_rows)(rows->start, lane0, p->stride, b);
        if (p->step == STEP_SQUARES)
            NAME(linear_pass)(p, s, lane0, d, A);
        else if (p->step == STEP_COLLAPSED)
            NAME(collapsed_pass)(p, s, lane0, b, d, H, WORK_G(workspace), A, NULL);
        else if (wanted == FULL)
            NAME(newton_pass)(p, s, lane0, b, d, A, H, rows->loglik_start);
        else if (wanted == DIAGONAL)
            NAME(diagonal_pass)(p, s, lane0, b, d, A, H, NULL);
        else
            NAME(gradient_pass)(p, s, lane0, b, d, A, rows->loglik_start);
        for (int h = 0; h < n_num + n_curvature; h++) {
            STORE(lanes, h < n_num ? d[h] : H[h - n_num]);
            for (int j = 0; j < WIDTH; j++)
                out[h * LANES + lane0 + j] += (double)lanes[j];
        }
    }
}

/* One step of update_rows, from statistics that are already summed: an EM step from num (GRADIENT); or a second-order step, from
 * num and stored curvature (GRADIENT with CURVATURE_RESCALE), from H (FULL; stored if rows->curvature has room), or from num, the
 * diagonal of H, and stored or shared correlations (DIAGONAL). With STEP_SQUARES, the steps of update_rows from num. */
static void NAME(step)(const row_problem *p, const double *sums, const slice_rows *rows, int wanted, void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int K = p->n_components, n_num = wanted == FULL ? 0 : K;
    const int n_curvature = wanted == FULL ? PACKED(K, 0) : wanted == DIAGONAL ? K : 0;
    if (p->step == STEP_SQUARES) {
        NAME(least_squares_of_sums)(p, sums, rows, workspace);
        return;
    }
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        REAL lanes[WIDTH] ALIGNED;
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        for (int h = 0; h < n_num + n_curvature; h++) {
            for (int j = 0; j < WIDTH; j++)
                lanes[j] = (REAL)sums[h * LANES + lane0 + j];
            *(h < n_num ? d + h : H + h - n_num) = LOAD(lanes);
        }
        if (wanted == FULL)
            NAME(numerators)(H, b, d, K);
        NAME(gradient)(p, rows, lane0, b, d, g);
        if (rows->kkt_start)
            NAME(put_kkt)(p, lane0, b, g, rows->kkt_start);
        if (wanted == GRADIENT && rows->curvature_mode != CURVATURE_RESCALE) {
            NAME(em_step)(p, rows, lane0, b, d, A);
        } else {
            if (wanted == GRADIENT)
                NAME(rescale_curvature)(p, rows, lane0, b, d, H, A);
            else if (wanted == DIAGONAL && !p->correlation)
                NAME(reuse_curvature)(K, lane0, H, rows->curvature, A, p->margin);
            else if (wanted == FULL && rows->curvature)
                NAME(store_curvature)(K, lane0, H, rows->curvature, A);
            NAME(second_order_step)(p, rows, lane0, b, g, H, d);
        }
        NAME(store_rows)(rows->end, lane0, p->stride, b);
    }
}

/* out = the slice's contribution to the correlation that all rows share: the sum of its rows' correlations H_kl / sqrt(H_kk H_ll),
 * weighted by the rows' total counts (packed, K (K + 1) / 2 numbers), then the sum of the weights. */
static void NAME(correlations)(const row_problem *p, const slice_counts *s, const slice_rows *rows, double *out,
                               void *workspace)
{
    VEC *b = WORK_B(workspace), *g = WORK_G(workspace), *d = WORK_D(workspace), *A = WORK_A(workspace), *H = WORK_H(workspace);
    const int K = p->n_components, n_packed = PACKED(K, 0);
    REAL lanes[WIDTH] ALIGNED;
    for (int h = 0; h <= n_packed; h++)
        out[h] = 0;
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        VEC total = SET1(0);
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        NAME(newton_pass)(p, s, lane0, b, d, A, H, NULL);
        for (int k = 0; k < K; k++) {
            total = FMA(b[k], d[k], total);               /* sum_k b_k num_k = sum y */
            g[k] = SET1(1) / VSQRT(H[PACKED(k, k)] + SET1((REAL)1e-30));
        }
        for (int k = 0; k < K; k++)
            for (int l = 0; l <= k; l++) {
                STORE(lanes, H[PACKED(k, l)] * g[k] * g[l] * total);
                for (int j = 0; j < WIDTH; j++)
                    out[PACKED(k, l)] += (double)lanes[j];
            }
        STORE(lanes, total);
        for (int j = 0; j < WIDTH; j++)
            out[n_packed] += (double)lanes[j];
    }
}

typedef double NAME(group_sum) __attribute__((vector_size(GROUP * sizeof(double))));
#if REAL_IS_FLOAT
typedef int32_t NAME(marks) __attribute__((vector_size(GROUP * sizeof(REAL))));      /* -1 where true, as comparisons return */
#else
typedef int64_t NAME(marks) __attribute__((vector_size(GROUP * sizeof(REAL))));
#endif
#define CHOOSE(mark, yes, no) ((NAME(group))(((mark) & (NAME(marks))(yes)) | (~(mark) & (NAME(marks))(no))))

/* ahead = max(now + momentum (now - scale before), leaves now, floor). Also computes the column sums of ahead and of now, summed in
 * row order; the largest |now - scale before|; and the number of entries of now at the floor. Optionally replaces the lag, and
 * copies the start to best. */
static void NAME(extrapolate)(const row_problem *p, int n_rows, const void *now, const slice_extrapolation *to, double momentum,
                              double leaves, const void *scale)
{
    const int stride = p->stride;
    const REAL beta = (REAL)momentum;
    const NAME(group) none = {0}, least = none + (REAL)p->floor, share = none + (REAL)leaves;
    NAME(group) largest = none;
    NAME(marks) at_floor = {0};
    for (int k = 0; k < stride; k += GROUP) {
        NAME(group) factor;
        NAME(group_sum) sum_ahead = {0}, sum_now = {0};
        NAME(marks) inside;                               /* -1 for components; padding is copied, and not summed */
        for (int j = 0; j < GROUP; j++)
            inside[j] = k + j < p->n_components ? -1 : 0;
        memcpy(&factor, (const REAL *)scale + k, sizeof factor);
        for (int i = 0; i < n_rows; i++) {
            const int64_t at = (int64_t)i * stride + k;
            NAME(group) value, start = none, moved, next;
            group_half lag;
            memcpy(&value, (const REAL *)now + at, sizeof value);
            if (to->start)
                memcpy(&start, (const REAL *)to->start + at, sizeof start);
            if (to->before) {
                memcpy(&moved, (const REAL *)to->before + at, sizeof moved);
            } else {
                memcpy(&lag, to->lag + at, sizeof lag);
                moved = start - __builtin_convertvector(FROM_UPPER_HALVES(lag, group_bits, group_float), NAME(group));
            }
            if (to->best && to->best_is_float) {
                const group_float narrow = __builtin_convertvector(start, group_float);
                memcpy((float *)to->best + at, &narrow, sizeof narrow);
            } else if (to->best) {
                memcpy((REAL *)to->best + at, &start, sizeof start);
            }
            moved = value - factor * moved;
            next = value + beta * moved;
            next = CHOOSE(next > share * value, next, share * value);
            next = CHOOSE(inside, CHOOSE(next > least, next, least), value);
            memcpy((REAL *)to->ahead + at, &next, sizeof next);
            if (to->lag) {
                lag = UPPER_HALVES(__builtin_convertvector(next - value, group_float), group_bits, group_half);
                memcpy(to->lag + at, &lag, sizeof lag);
            }
            NAME(group_sum) wide_next = __builtin_convertvector(next, NAME(group_sum));
            NAME(group_sum) wide_value = __builtin_convertvector(value, NAME(group_sum));
            if (to->weight)
                wide_next *= to->weight[i], wide_value *= to->weight[i];
            sum_ahead += wide_next;
            sum_now += wide_value;
            at_floor -= (value <= least) & inside;
            moved = CHOOSE(inside, CHOOSE(moved < none, -moved, moved), none);
            largest = CHOOSE(moved > largest, moved, largest);
        }
        for (int j = 0; j < GROUP; j++)
            if (!inside[j])
                sum_ahead[j] = sum_now[j] = 0;
        memcpy(to->column_sums + k, &sum_ahead, sizeof sum_ahead);
        memcpy(to->column_sums + stride + k, &sum_now, sizeof sum_now);
    }
    REAL most = 0;
    *to->zeros = 0;
    for (int j = 0; j < GROUP; j++) {
        most = largest[j] > most ? largest[j] : most;
        *to->zeros += at_floor[j];
    }
    *to->change = (double)most;
}

/* Sum of mu over the nonzeros of each row: only gathers and dot products, a lower bound on the time of any kernel. */
INLINE void NAME(expected)(const row_problem *p, const slice_counts *s, int lane0, const VEC *b, VEC *A, double *out,
                           const int K)
{
    REAL lanes[WIDTH] ALIGNED;
    VEC sum = SET1(0), registers[12], *a = K <= 12 ? registers : A;
    NAME(tile) tile;
    for (int64_t q = 0; q < s->n_entries; q += TILE) {
        const int n = s->n_entries - q < TILE ? (int)(s->n_entries - q) : TILE;
        NAME(decode)(p, s, q, n, lane0, &tile);
        for (int t = 0; t < n; t++) {
            VEC mu = NAME(gather_dot)(p->design, tile.at + t * WIDTH, b, a, K);
            sum = FMA(mu, AT_LEAST(LOAD(tile.y + t * WIDTH), SET1((REAL)1e-30)), sum);
        }
    }
    STORE(lanes, sum);
    for (int j = 0; j < WIDTH; j++)
        out[lane0 + j] = lanes[j];
}

static void NAME(only_gather_dot)(const row_problem *p, const slice_counts *s, const slice_rows *rows, double *out, void *workspace)
{
    VEC *b = WORK_B(workspace), *A = WORK_A(workspace);
    for (int lane0 = 0; lane0 < LANES; lane0 += WIDTH) {
        NAME(load_rows)(rows->start, lane0, p->stride, b);
        switch (p->n_components) {
        case 6: NAME(expected)(p, s, lane0, b, A, out, 6); break;
        case 10: NAME(expected)(p, s, lane0, b, A, out, 10); break;
        default: NAME(expected)(p, s, lane0, b, A, out, p->stride);
        }
    }
}
