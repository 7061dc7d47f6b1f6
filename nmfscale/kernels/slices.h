/* One slice = 16 rows of counts side by side; the structures that Cython and the arithmetic share. */
#ifndef NMFSCALE_SLICES_H
#define NMFSCALE_SLICES_H

#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, GROUP = 4 };                           /* rows in a slice; coordinates gathered together */
enum { COUNT_UINT8, COUNT_UINT16, COUNT_FLOAT32, COUNT_FLOAT64 };
enum { CURVATURE_FRESH, CURVATURE_STORE, CURVATURE_REUSE, CURVATURE_RESCALE };
enum { GRADIENT, FULL, DIAGONAL };                        /* what a pass sums */
enum { STEP_FACTOR, STEP_DIRICHLET, STEP_GAMMA, STEP_SQUARES };   /* what update_rows does: see there, infer and least_squares */
enum { DIGAMMA, EXP_DIGAMMA, LOG_GAMMA, FURTHER };        /* psi = (log Gamma)', exp(psi), log Gamma; see elementwise */

/* Step q, lane r: index[16 q + r] is a row of the held factor, count[16 q + r] the count (0 in the padding). */
typedef struct {
    const void *index, *count;
    int index_bytes, count_kind;
    int64_t n_steps;
} slice_counts;

/* min over b >= 0 of  sum_k b_k total_k - sum_q y_q log(a_q . b)  for every row, with `design` rows a_q. */
typedef struct {
    int n_components, stride;      /* stride: n_components rounded up to a multiple of GROUP, the row length in memory */
    const void *design;            /* (n_cols, stride) held factor */
    const void *total;             /* (stride) column sums of the held factor */
    const void *moves;             /* (stride) 1 where a coordinate may move, 0 where it is held; or NULL */
    double floor;                  /* smallest value of a coordinate */
    int em_steps, newton_steps;    /* of an update; newton_steps is the number of sweeps in a descent */
    int64_t em_longest;            /* EM steps are taken where a slice has at most so many steps */
    int qp_sweeps;                 /* coordinate sweeps over the K x K quadratic, at most */
    double qp_tolerance;           /* in units of log-likelihood */
    double margin;                 /* factor on today's diagonal of stored curvature */
    const void *correlation;       /* (K, K) shared by all rows, its diagonal with a margin; or NULL: each row has its own curvature */
    int guarded;                   /* a descent takes the step size of scalar Newton */
    int step;                      /* STEP_FACTOR or a mean-field step */
    const void *gram;              /* (K, K) D'D of the held factor D, for STEP_SQUARES */
    const void *labels;            /* (n_labels, stride) what the rows explain labels by, see descend_jointly; or NULL */
    int n_labels, label_squares;
    const void *alpha;             /* (stride) shapes of the prior of mean-field steps, whose rates are in total */
    int inner_steps;               /* mean-field steps of an update, at most, */
    double tolerance;              /* until the mean change of a row's shapes is less than that; of solve, see solve_row */
} row_problem;

/* What belongs to one slice; pointers may be NULL where the comment says so. */
typedef struct {
    const void *start;             /* (16, stride) where the rows begin */
    void *end;                     /* (16, stride) where they arrive; may be the same memory */
    const void *pseudo, *rate;     /* (16, stride) pseudo-counts and additions to total (Gamma prior), or NULL */
    const void *up, *down;         /* (n_labels, 16) of the labels, see descend_jointly; or NULL */
    const void *quadratic;         /* (K (K + 1) / 2, 16) a quadratic term of each row, likewise */
    uint16_t *curvature;           /* (K (K + 1) / 2, 16) curvature of an earlier update, see store_curvature; or NULL */
    int curvature_mode;
    double *loglik_start, *kkt_start;   /* (16) sum y log mu and max_k |b_k g_k| at the start, or NULL */
    double *loglik_end, *kkt_end;       /* (16) the same at the end, or NULL */
    /* Of mean-field steps, whose loglik_end is of their last pass; or NULL: */
    void *theta, *log_end;         /* (16, stride) exp(E log h) at the last pass, E log h at the end */
    double *prior_end;             /* (16) see put_prior */
} slice_rows;

/* How the rows of a slice go on from where they arrived; pointers may be NULL where the comment says so. */
typedef struct {
    const void *start;             /* (16, stride) where the step began, for lag and best; or NULL */
    const void *before;            /* (16, stride) the plain point before, or NULL: start - lag */
    void *ahead;                   /* (16, stride) may be the memory of start or of before */
    uint16_t *lag;                 /* (16, stride) start - the plain point before, replaced by ahead - now, as bfloat16; or NULL */
    void *best;                    /* (16, stride) takes start; or NULL */
    int best_is_float;
    const double *weight;          /* (16) of the rows in column_sums; or NULL */
    double *column_sums;           /* (2, stride) of ahead and of now */
    double *change;
    int64_t *zeros;
} slice_extrapolation;

typedef void (*move_kernel)(const row_problem *, const slice_counts *, const slice_rows *, void *workspace);
typedef void (*values_kernel)(const row_problem *, const slice_counts *, const slice_rows *, double *out, void *workspace);

typedef struct {
    move_kernel update_rows, descend, descend_jointly, solve;
    void (*sums)(const row_problem *, const slice_counts *, const slice_rows *, int wanted, double *out, void *workspace);
    void (*step)(const row_problem *, const double *sums, const slice_rows *, int wanted, void *workspace);
    void (*extrapolate)(const row_problem *, int n_rows, const void *now, const slice_extrapolation *, double momentum, double leaves,
                        const void *scale);
    values_kernel correlations, gather_dot;
    void (*elementwise)(int function, int64_t n, const void *x, const void *before, double momentum, void *out);
} row_kernels;

enum { PANEL = 16 };                                      /* columns of a panel of whole numbers */

typedef struct {
    row_kernels f32, f64;
    void (*gather_sum)(const int32_t *panel, const uint32_t *picked, int64_t n, int32_t *sums);
} level_kernels;
extern const level_kernels nmfscale_baseline, nmfscale_avx2, nmfscale_avx512;

int nmfscale_processor_level(void);                       /* 0 baseline, 2 AVX2 + FMA, 3 AVX-512 */
size_t nmfscale_update_rows_bytes(int n_components, int real_bytes);
size_t nmfscale_descend_bytes(int n_components, int64_t max_steps, int real_bytes);
size_t nmfscale_solve_bytes(int n_components, int64_t max_steps, int real_bytes);

#endif
