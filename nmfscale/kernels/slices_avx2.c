/* The row kernels for AVX2 and fused multiply-add. */
#ifdef __x86_64__
#ifdef __clang__
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#endif
#define LEVEL 2
#define LEVEL_NAME nmfscale_avx2
#include "both_types.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
