/* The row kernels for AVX-512. A debug build leaves them out: their code is that of AVX2, in wider vectors. */
#if defined(__x86_64__) && !NMFSCALE_DEBUG
#ifdef __clang__
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#endif
#define LEVEL 3
#define LEVEL_NAME nmfscale_avx512
#include "both_types.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
