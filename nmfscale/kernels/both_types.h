/* The arithmetic for float and for double at one LEVEL, and the table of its kernels. */
#include <math.h>
#include <string.h>
#include "slices.h"

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define UNROLL _Pragma("GCC unroll 16")

typedef float group_float __attribute__((vector_size(GROUP * sizeof(float))));
typedef uint32_t group_bits __attribute__((vector_size(GROUP * sizeof(uint32_t))));
typedef uint16_t group_half __attribute__((vector_size(GROUP * sizeof(uint16_t))));

/* Rounds floats to their upper 16 bits (bfloat16: 8 significant bits), and back.  For vectors of any width: BITS and HALVES are
 * the vector types of the 32 bits and of the upper halves. */
#define UPPER_HALVES(x, BITS, HALVES) __builtin_convertvector(((BITS)(x) + 0x8000) >> 16, HALVES)
#define FROM_UPPER_HALVES(x, BITS, FLOATS) ((FLOATS)(__builtin_convertvector(x, BITS) << 16))

#include "gather_sum.h"
#include "dense.h"

#define REAL float
#define REAL_IS_FLOAT 1
#define NAME(x) x##_f32
#include "simd.h"
#include "arithmetic.h"
#include "undefine.h"

#define REAL double
#define REAL_IS_FLOAT 0
#define NAME(x) x##_f64
#include "simd.h"
#include "arithmetic.h"
#include "contrasts.h"
#include "targets.h"

#define TABLE(t) {update_rows_##t, descend_##t, descend_jointly_##t, solve_##t, sums_##t, step_##t, extrapolate_##t, correlations_##t, \
                  only_gather_dot_##t, elementwise_##t}
const level_kernels LEVEL_NAME = {TABLE(f32), TABLE(f64), gather_sum, dense_product, dense_cross, dense_of_sparse,
                                  dense_nearest, dense_closer, contrasts_f64, targets_f64};
