/* The row kernels for AVX-512. */
#if defined(__x86_64__) && defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#define LEVEL 3
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#define LEVEL 3
#else
#define LEVEL 0
#endif
#define LEVEL_NAME nmfscale_avx512
#include "both_types.h"
#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
