/* The arithmetic for float and for double at one LEVEL, and the table of its kernels. */
#include <math.h>
#include <string.h>
#include "slices.h"

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define UNROLL _Pragma("GCC unroll 16")

typedef float group_float __attribute__((vector_size(GROUP * sizeof(float))));

#define REAL float
#define REAL_IS_FLOAT 1
#define NAME(x) x##_f32
#include "lanes.h"
#include "arithmetic.h"
#include "undefine.h"

#define REAL double
#define REAL_IS_FLOAT 0
#define NAME(x) x##_f64
#include "lanes.h"
#include "arithmetic.h"

#define TABLE(t) {visit_##t, descend_##t, sums_##t, step_##t, extrapolate_##t, correlations_##t, only_gather_dot_##t}
const level_kernels LEVEL_NAME = {TABLE(f32), TABLE(f64)};
