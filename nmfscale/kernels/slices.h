/* Structures shared by Cython and the arithmetic. A slice is 16 rows of counts, processed side by side: one in each lane. */
#ifndef NMFSCALE_SLICES_H
#define NMFSCALE_SLICES_H

#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, GROUP = 4 };                           /* rows of a slice; coordinates gathered at once */
enum { COUNT_UINT8, COUNT_UINT16, COUNT_FLOAT32, COUNT_FLOAT64 };
enum { CURVATURE_FRESH, CURVATURE_STORE, CURVATURE_REUSE, CURVATURE_RESCALE };
enum { GRADIENT, FULL, DIAGONAL };                        /* statistics that a pass sums */
enum { STEP_FACTOR, STEP_DIRICHLET, STEP_GAMMA, STEP_SQUARES, STEP_COLLAPSED };   /* kind of step: see update_rows */
enum { DIGAMMA, EXP_DIGAMMA, LOG_GAMMA, TRIGAMMA, LOG, EXP, FURTHER, NONZERO };      /* psi = (log Gamma)', exp(psi), ...; see elementwise */

/* Entry q of lane r: index[16 q + r] is a row of the held factor, count[16 q + r] the count (0 in the padding). */
typedef struct {
    const void *index, *count;
    int index_bytes, count_kind;
    int dense;                     /* whether entry q has index q in all lanes that have a count there */
    int64_t n_entries;
} slice_counts;

/* min over b >= 0 of  sum_k b_k total_k - sum_q y_q log(a_q . b)  for every row; the a_q are rows of `design`. */
typedef struct {
    int n_components, stride;      /* stride: n_components rounded up to a multiple of GROUP, the row length in memory */
    const void *design;            /* (n_cols, stride) held factor */
    const void *total;             /* (stride) column sums of the held factor */
    const void *moves;             /* (stride) 1 for coordinates that are updated, 0 for those that are held; or NULL */
    double floor;                  /* smallest value of a coordinate */
    int em_steps, newton_steps;    /* steps of an update; newton_steps is the number of sweeps in a descent */
    int64_t em_longest;            /* slices with more entries than this take no EM steps */
    int qp_sweeps;                 /* largest number of coordinate sweeps over the K x K quadratic */
    double qp_tolerance;           /* in units of log-likelihood */
    double margin;                 /* factor on the current diagonal, if curvature is reused or rescaled */
    const void *correlation;       /* (K, K) correlation that all rows share, diagonal with a margin; NULL: each row has its own */
    int guarded;                   /* descend uses the step size of scalar Newton */
    int step;                      /* kind of step, STEP_... */
    const void *gram;              /* (K, K) D'D of the held factor D, for STEP_SQUARES */
    const void *labels;            /* (n_labels, stride) held factor of the labels, see descend_jointly; or NULL */
    int n_labels, label_squares;
    const void *alpha;             /* (stride) prior shapes of mean-field steps; the rates are in total */
    const void *held_prior;        /* (stride) prior of the held factor, see collapsed.h; or NULL */
    int inner_steps;               /* largest number of mean-field or collapsed steps of an update */
    double tolerance;              /* mean change of a row's shapes at which it stops; for solve, see solve_row */
} row_problem;

/* Row arrays of one slice; pointers may be NULL if the comment says so. */
typedef struct {
    const void *start;             /* (16, stride) rows before the update */
    void *end;                     /* (16, stride) rows after the update; may be the memory of start */
    const void *pseudo, *rate;     /* (16, stride) Gamma prior: pseudo-counts, and terms added to total; or NULL */
    const void *up, *down;         /* (n_labels, 16) coefficients of the labels' loss, see descend_jointly; or NULL */
    const void *quadratic;         /* (K (K + 1) / 2, 16) quadratic term of each row, see descend_jointly; or NULL */
    uint16_t *curvature;           /* (K (K + 1) / 2, 16) curvature of an earlier update, see store_curvature; or NULL */
    int curvature_mode;
    const double *scale;           /* (16) factors of num in least squares; or NULL */
    double *loglik_start, *kkt_start;   /* (16) sum y log mu and max_k |b_k g_k| at the start, or NULL */
    double *loglik_end, *kkt_end;       /* (16) the same at the end, or NULL */
    /* For mean-field steps, whose loglik_end belongs to their last pass; or NULL: */
    void *theta, *log_end;         /* (16, stride) exp(E log h) of the last pass; E log h at the end */
    double *prior_end;             /* (16) see put_prior */
    void *squares;                 /* (16, stride) sum y gamma^2 of the last pass, see collapsed.h; or NULL */
} slice_rows;

/* Extrapolation of the updated rows of a slice; pointers may be NULL if the comment says so. */
typedef struct {
    const void *start;             /* (16, stride) rows before the update, for lag and best; or NULL */
    const void *before;            /* (16, stride) result of the previous update; NULL: it is start - lag */
    void *ahead;                   /* (16, stride) extrapolated rows; may be the memory of start or of before */
    uint16_t *lag;                 /* (16, stride) bfloat16: start - (previous result), replaced by ahead - now; or NULL */
    void *best;                    /* (16, stride) receives a copy of start; or NULL */
    int best_is_float;
    const double *weight;          /* (16) weights of the rows in column_sums; or NULL */
    double *column_sums;           /* (2, stride) column sums of ahead and of now */
    double *change;                /* (1) largest |now - scale before| */
    int64_t *zeros;                /* (1) number of entries of now at the floor */
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

/* Regressions of the rows of a slice on the held factor, and contrasts of their coefficients: see contrasts.h. */
typedef struct {
    const double *total;           /* (K, 16) linear terms of the coefficients of each row */
    const double *mean;            /* (16) equal coefficients of each row, from which it starts */
    const double *weights;         /* (K, K) weights of the coefficients that each one is compared with; NULL: the nearest one */
    double pseudo;                 /* pseudo-counts of each coefficient; their rate is pseudo / mean */
    double pseudo_of_tests;        /* those of the likelihood ratios, at most 1 */
    int bounds;                    /* whether no count is below 1 */
} contrast_problem;

/* Dense targets Y (n, m) with weights of rows, and the factors of their predictions: see targets.h. */
typedef struct {
    const double *Y, *S, *B, *w;   /* (n, m); (n, K); (K, stride), transposed; (n) */
    int64_t n, m, stride;
    int K, divides;
} target_problem;

enum { PANEL = 16 };                                      /* columns of a panel of integers */
enum { WIDE = 8 };                                        /* numbers of a row of a dense matrix are padded to a multiple */

typedef struct {
    row_kernels f32, f64;
    void (*gather_sum)(const int32_t *panel, const uint32_t *picked, int64_t n, int32_t *sums);
    void (*product)(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out);          /* see dense.h */
    void (*cross)(const double *A, const double *B, int64_t n, int64_t k, int64_t m, double *out);
    void (*of_sparse)(const int32_t *index, const double *count, int64_t n_entries, const double *B, int64_t m, double *out);
    void (*nearest)(const double *points, const double *twice, const double *square, int64_t n, int64_t d, int64_t k, double *room,
                    int32_t *out);
    void (*closer)(const double *points, const double *squares, const double *closest, const double *twice, const double *others,
                   int64_t n, int64_t d, int64_t m, double *out);
    void (*contrasts)(const row_problem *, const slice_counts *, const contrast_problem *, double *out, void *workspace);
    void (*targets)(const target_problem *, int sums, int64_t first, int64_t last, double *out, double *loss, double *room);
} level_kernels;
extern const level_kernels nmfscale_baseline, nmfscale_neon, nmfscale_avx2, nmfscale_avx512;

/* 0: baseline, 1: NEON, 2: AVX2 + FMA, 3: AVX-512; NULL if the kernels lack this level or the processor does not support it. */
const level_kernels *nmfscale_kernels(int level);
size_t nmfscale_update_rows_bytes(int n_components, int real_bytes);
size_t nmfscale_descend_bytes(int n_components, int64_t max_entries, int real_bytes);
size_t nmfscale_solve_bytes(int n_components, int64_t max_entries, int real_bytes);
size_t nmfscale_contrasts_bytes(int n_components);

#endif
