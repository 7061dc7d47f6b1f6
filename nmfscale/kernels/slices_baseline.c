/* The row kernels for the instructions that every processor of the architecture has. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define LEVEL 1
#define LEVEL_NAME nmfscale_neon
#else
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#define LEVEL 0
#define LEVEL_NAME nmfscale_baseline
#endif
#include "both_types.h"

const level_kernels *nmfscale_kernels(int level)
{
    if (level == LEVEL)
        return &LEVEL_NAME;
#if defined(__x86_64__) && defined(__GNUC__)
    if (level == 2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &nmfscale_avx2;
#if !NMFSCALE_DEBUG
    if (level == 3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &nmfscale_avx512;
#endif
#endif
    return NULL;
}

/* Bytes of scratch memory, enough for every level: computed for vectors of LANES numbers. */
size_t nmfscale_update_rows_bytes(int n_components, int real_bytes)
{
    size_t stride = (size_t)(n_components + GROUP - 1) / GROUP * GROUP, packed = (size_t)n_components * (n_components + 1) / 2;
    return (3 * stride + TILE * stride + packed + 2 * stride) * LANES * real_bytes;
}

size_t nmfscale_descend_bytes(int n_components, int64_t max_entries, int real_bytes)
{
    return nmfscale_update_rows_bytes(n_components, real_bytes) + (size_t)max_entries * (n_components + 2) * LANES * real_bytes;
}

size_t nmfscale_solve_bytes(int n_components, int64_t max_entries, int real_bytes)
{
    size_t padded = PAD((size_t)n_components), entries = PAD((size_t)max_entries);
    return (padded * (7 + TILE + padded) + 3 * entries) * real_bytes + (padded + entries) * sizeof(int32_t);
}

size_t nmfscale_contrasts_bytes(int n_components)
{
    size_t stride = (size_t)(n_components + GROUP - 1) / GROUP * GROUP, packed = (size_t)n_components * (n_components + 1) / 2;
    return ((13 + TILE) * stride + 3 * packed) * LANES * sizeof(double);
}
