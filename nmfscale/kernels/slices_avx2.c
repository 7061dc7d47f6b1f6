/* The row kernels for AVX2 and fused multiply-add. */
#if defined(__x86_64__) && defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#define LEVEL 2
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#define LEVEL 2
#else
#define LEVEL 0
#endif
#define LEVEL_NAME nmfscale_avx2
#include "both_types.h"
#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
