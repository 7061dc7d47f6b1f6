/* The row kernels for the baseline: instructions that every processor of the architecture has. */
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#define LEVEL 0
#define LEVEL_NAME nmfscale_baseline
#include "both_types.h"

int nmfscale_processor_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 3;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 2;
#endif
    return 0;
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
