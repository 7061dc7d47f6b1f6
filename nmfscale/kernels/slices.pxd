"""Declarations of slices.h, where they are documented."""
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t

cdef extern from "slices.h" nogil:
    enum: LANES, GROUP, PANEL, WIDE
    enum: COUNT_UINT8, COUNT_UINT16, COUNT_FLOAT32, COUNT_FLOAT64
    enum: CURVATURE_FRESH, CURVATURE_STORE, CURVATURE_REUSE, CURVATURE_RESCALE
    enum: GRADIENT, FULL, DIAGONAL
    enum: STEP_FACTOR, STEP_DIRICHLET, STEP_GAMMA, STEP_SQUARES, STEP_COLLAPSED
    enum: DIGAMMA, EXP_DIGAMMA, LOG_GAMMA, TRIGAMMA, LOG, EXP, FURTHER, NONZERO
    ctypedef struct slice_counts:
        const void *index
        const void *count
        int index_bytes, count_kind, dense
        int64_t n_entries
    ctypedef struct row_problem:
        int n_components, stride
        const void *design
        const void *total
        const void *moves
        double floor
        int em_steps, newton_steps
        int64_t em_longest
        int qp_sweeps
        double qp_tolerance, margin
        const void *correlation
        int guarded
        int step
        const void *gram
        const void *labels
        int n_labels, label_squares
        const void *alpha
        const void *held_prior
        int inner_steps
        double tolerance
    ctypedef struct slice_rows:
        const void *start
        void *end
        const void *pseudo
        const void *rate
        const void *up
        const void *down
        const void *quadratic
        uint16_t *curvature
        int curvature_mode
        const double *scale
        double *loglik_start
        double *kkt_start
        double *loglik_end
        double *kkt_end
        void *theta
        void *log_end
        double *prior_end
        void *squares
    ctypedef struct slice_extrapolation:
        const void *start
        const void *before
        void *ahead
        uint16_t *lag
        void *best
        int best_is_float
        const double *weight
        double *column_sums
        double *change
        int64_t *zeros
    ctypedef void (*move_kernel)(const row_problem *, const slice_counts *, const slice_rows *,
                                 void *) noexcept nogil
    ctypedef void (*values_kernel)(const row_problem *, const slice_counts *, const slice_rows *,
                                   double *, void *) noexcept nogil
    ctypedef struct row_kernels:
        move_kernel update_rows, descend, descend_jointly, solve
        void (*sums)(const row_problem *, const slice_counts *, const slice_rows *, int, double *,
                     void *) noexcept nogil
        void (*step)(const row_problem *, const double *, const slice_rows *, int,
                     void *) noexcept nogil
        void (*extrapolate)(const row_problem *, int, const void *, const slice_extrapolation *,
                            double, double, const void *) noexcept nogil
        values_kernel correlations, gather_dot
        void (*elementwise)(int, int64_t, const void *, const void *, double,
                            void *) noexcept nogil
    ctypedef struct contrast_problem:
        const double *total
        const double *mean
        const double *weights
        double pseudo
        double pseudo_of_tests
        int bounds
    ctypedef struct target_problem:
        const double *Y
        const double *S
        const double *B
        const double *w
        int64_t n, m, stride
        int K, divides
    ctypedef struct level_kernels:
        row_kernels f32, f64
        void (*gather_sum)(const int32_t *, const uint32_t *, int64_t, int32_t *) noexcept nogil
        void (*product)(const double *, const double *, int64_t, int64_t, int64_t,
                        double *) noexcept nogil
        void (*cross)(const double *, const double *, int64_t, int64_t, int64_t,
                      double *) noexcept nogil
        void (*of_sparse)(const int32_t *, const double *, int64_t, const double *, int64_t,
                          double *) noexcept nogil
        void (*nearest)(const double *, const double *, const double *, int64_t, int64_t, int64_t,
                        double *, int32_t *) noexcept nogil
        void (*closer)(const double *, const double *, const double *, const double *,
                       const double *, int64_t, int64_t, int64_t, double *) noexcept nogil
        void (*contrasts)(const row_problem *, const slice_counts *, const contrast_problem *,
                          double *, void *) noexcept nogil
        void (*targets)(const target_problem *, int, int64_t, int64_t, double *, double *,
                        double *) noexcept nogil
    const level_kernels *nmfscale_kernels(int)
    size_t nmfscale_update_rows_bytes(int, int)
    size_t nmfscale_descend_bytes(int, int64_t, int)
    size_t nmfscale_solve_bytes(int, int64_t, int)
    size_t nmfscale_contrasts_bytes(int)
