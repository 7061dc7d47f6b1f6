/* Vector operations of one instruction set; each lane holds one row of counts.
 *
 * Included once for REAL = float and once for double.  LEVEL is 0 (baseline), 1 (NEON), 2 (AVX2 + FMA) or 3 (AVX-512).
 * No operation mixes lanes, and FMA is explicit (contraction is off), so a row's result does not depend on WIDTH:
 * NEON, AVX2 and AVX-512 agree to the last bit; the baseline has no fused multiply-add and may differ in the last bits.
 */

#if LEVEL == 3 && REAL_IS_FLOAT
#define VEC __m512
#define WIDTH 16
#define SET1 _mm512_set1_ps
#define LOAD _mm512_load_ps
#define STORE _mm512_store_ps
#define FMA _mm512_fmadd_ps
#define FNMA _mm512_fnmadd_ps
#define VMAX _mm512_max_ps
#define VSQRT _mm512_sqrt_ps
#define VABS _mm512_abs_ps
#define AT_LEAST(x, y) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), SET1(0), SET1(1))
#define ANY(x) (_mm512_cmp_ps_mask(x, SET1(0), _CMP_NEQ_OQ) != 0)
#define BITS __m512i
#define TO_BITS _mm512_castps_si512
#define FROM_BITS _mm512_castsi512_ps
#define BITS1 _mm512_set1_epi32
#define BITS_ADD _mm512_add_epi32
#define BITS_SUB _mm512_sub_epi32
#define SHIFT_RIGHT _mm512_srai_epi32
#define SHIFT_LEFT _mm512_slli_epi32
#define SMALL_INT(i) _mm512_cvtepi32_ps(i)

#elif LEVEL == 3
#define VEC __m512d
#define WIDTH 8
#define SET1 _mm512_set1_pd
#define LOAD _mm512_load_pd
#define STORE _mm512_store_pd
#define FMA _mm512_fmadd_pd
#define FNMA _mm512_fnmadd_pd
#define VMAX _mm512_max_pd
#define VSQRT _mm512_sqrt_pd
#define VABS _mm512_abs_pd
#define AT_LEAST(x, y) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, y, _CMP_GE_OQ), SET1(0), SET1(1))
#define ANY(x) (_mm512_cmp_pd_mask(x, SET1(0), _CMP_NEQ_OQ) != 0)
#define BITS __m512i
#define TO_BITS _mm512_castpd_si512
#define FROM_BITS _mm512_castsi512_pd
#define BITS1 _mm512_set1_epi64
#define BITS_ADD _mm512_add_epi64
#define BITS_SUB _mm512_sub_epi64
#define SHIFT_RIGHT _mm512_srli_epi64
#define SHIFT_LEFT _mm512_slli_epi64

#elif LEVEL == 2 && REAL_IS_FLOAT
#define VEC __m256
#define WIDTH 8
#define SET1 _mm256_set1_ps
#define LOAD _mm256_load_ps
#define STORE _mm256_store_ps
#define FMA _mm256_fmadd_ps
#define FNMA _mm256_fnmadd_ps
#define VMAX _mm256_max_ps
#define VSQRT _mm256_sqrt_ps
#define VABS(x) _mm256_andnot_ps(SET1(-0.0f), x)
#define AT_LEAST(x, y) _mm256_and_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ), SET1(1))
#define ANY(x) (_mm256_movemask_ps(_mm256_cmp_ps(x, SET1(0), _CMP_NEQ_OQ)) != 0)
#define BITS __m256i
#define TO_BITS _mm256_castps_si256
#define FROM_BITS _mm256_castsi256_ps
#define BITS1 _mm256_set1_epi32
#define BITS_ADD _mm256_add_epi32
#define BITS_SUB _mm256_sub_epi32
#define SHIFT_RIGHT _mm256_srai_epi32
#define SHIFT_LEFT _mm256_slli_epi32
#define SMALL_INT(i) _mm256_cvtepi32_ps(i)

#elif LEVEL == 2
#define VEC __m256d
#define WIDTH 4
#define SET1 _mm256_set1_pd
#define LOAD _mm256_load_pd
#define STORE _mm256_store_pd
#define FMA _mm256_fmadd_pd
#define FNMA _mm256_fnmadd_pd
#define VMAX _mm256_max_pd
#define VSQRT _mm256_sqrt_pd
#define VABS(x) _mm256_andnot_pd(SET1(-0.0), x)
#define AT_LEAST(x, y) _mm256_and_pd(_mm256_cmp_pd(x, y, _CMP_GE_OQ), SET1(1))
#define ANY(x) (_mm256_movemask_pd(_mm256_cmp_pd(x, SET1(0), _CMP_NEQ_OQ)) != 0)
#define BITS __m256i
#define TO_BITS _mm256_castpd_si256
#define FROM_BITS _mm256_castsi256_pd
#define BITS1 _mm256_set1_epi64x
#define BITS_ADD _mm256_add_epi64
#define BITS_SUB _mm256_sub_epi64
#define SHIFT_RIGHT _mm256_srli_epi64
#define SHIFT_LEFT _mm256_slli_epi64

#elif defined(__SSE2__) && REAL_IS_FLOAT
#define VEC __m128
#define WIDTH 4
#define SET1 _mm_set1_ps
#define LOAD _mm_load_ps
#define STORE _mm_store_ps
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#define VMAX _mm_max_ps
#define VSQRT _mm_sqrt_ps
#define VABS(x) _mm_andnot_ps(SET1(-0.0f), x)
#define AT_LEAST(x, y) _mm_and_ps(_mm_cmpge_ps(x, y), SET1(1))
#define ANY(x) (_mm_movemask_ps(_mm_cmpneq_ps(x, SET1(0))) != 0)
#define BITS __m128i
#define TO_BITS _mm_castps_si128
#define FROM_BITS _mm_castsi128_ps
#define BITS1 _mm_set1_epi32
#define BITS_ADD _mm_add_epi32
#define BITS_SUB _mm_sub_epi32
#define SHIFT_RIGHT _mm_srai_epi32
#define SHIFT_LEFT _mm_slli_epi32
#define SMALL_INT(i) _mm_cvtepi32_ps(i)

#elif defined(__SSE2__)
#define VEC __m128d
#define WIDTH 2
#define SET1 _mm_set1_pd
#define LOAD _mm_load_pd
#define STORE _mm_store_pd
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#define VMAX _mm_max_pd
#define VSQRT _mm_sqrt_pd
#define VABS(x) _mm_andnot_pd(SET1(-0.0), x)
#define AT_LEAST(x, y) _mm_and_pd(_mm_cmpge_pd(x, y), SET1(1))
#define ANY(x) (_mm_movemask_pd(_mm_cmpneq_pd(x, SET1(0))) != 0)
#define BITS __m128i
#define TO_BITS _mm_castpd_si128
#define FROM_BITS _mm_castsi128_pd
#define BITS1 _mm_set1_epi64x
#define BITS_ADD _mm_add_epi64
#define BITS_SUB _mm_sub_epi64
#define SHIFT_RIGHT _mm_srli_epi64
#define SHIFT_LEFT _mm_slli_epi64

#elif LEVEL == 1 && REAL_IS_FLOAT
#define VEC float32x4_t
#define WIDTH 4
#define SET1(x) vdupq_n_f32((REAL)(x))
#define LOAD vld1q_f32
#define STORE vst1q_f32
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define FNMA(a, b, c) vfmsq_f32(c, a, b)
#define VMAX(x, y) NAME(larger)(x, y)
#define VSQRT vsqrtq_f32
#define VABS vabsq_f32
#define AT_LEAST(x, y) vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, y), vreinterpretq_u32_f32(SET1(1))))
#define ANY(x) (vmaxvq_u32(vcagtq_f32(x, SET1(0))) != 0)
#define BITS int32x4_t
#define TO_BITS vreinterpretq_s32_f32
#define FROM_BITS vreinterpretq_f32_s32
#define BITS1 vdupq_n_s32
#define BITS_ADD vaddq_s32
#define BITS_SUB vsubq_s32
#define SHIFT_RIGHT vshrq_n_s32
#define SHIFT_LEFT vshlq_n_s32
#define SMALL_INT(i) vcvtq_f32_s32(i)

#elif LEVEL == 1
#define VEC float64x2_t
#define WIDTH 2
#define SET1(x) vdupq_n_f64((REAL)(x))
#define LOAD vld1q_f64
#define STORE vst1q_f64
#define FMA(a, b, c) vfmaq_f64(c, a, b)
#define FNMA(a, b, c) vfmsq_f64(c, a, b)
#define VMAX(x, y) NAME(larger)(x, y)
#define VSQRT vsqrtq_f64
#define VABS vabsq_f64
#define AT_LEAST(x, y) vreinterpretq_f64_u64(vandq_u64(vcgeq_f64(x, y), vreinterpretq_u64_f64(SET1(1))))
#define ANY(x) (vmaxvq_u32(vreinterpretq_u32_u64(vcagtq_f64(x, SET1(0)))) != 0)
#define BITS uint64x2_t
#define TO_BITS vreinterpretq_u64_f64
#define FROM_BITS vreinterpretq_f64_u64
#define BITS1 vdupq_n_u64
#define BITS_ADD vaddq_u64
#define BITS_SUB vsubq_u64
#define SHIFT_RIGHT vshrq_n_u64
#define SHIFT_LEFT vshlq_n_u64

#else /* neither x86 nor ARM64: one lane, plain C */
#define VEC REAL
#define WIDTH 1
#define SET1(x) ((REAL)(x))
#define LOAD(p) (*(p))
#define STORE(p, x) (*(p) = (x))
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#define VMAX(a, b) ((a) > (b) ? (a) : (b))
#define VSQRT(x) ((REAL)sqrt(x))
#define VABS(x) ((REAL)fabs(x))
#define AT_LEAST(x, y) ((REAL)((x) >= (y)))
#define ANY(x) ((x) != 0)
#endif

#if LEVEL == 1
/* x86 takes the second of two zeros and of two numbers that are not ordered; NEON's own maximum does not. */
INLINE VEC NAME(larger)(VEC x, VEC y)
{
#if REAL_IS_FLOAT
    return vbslq_f32(vcgtq_f32(x, y), x, y);
#else
    return vbslq_f64(vcgtq_f64(x, y), x, y);
#endif
}
#endif

/* Load WIDTH stored counts or indices and convert them to working types. Intrinsics replace conversions that the compiler would
 * do one by one, which would cost half as much as the gathers themselves. */
typedef int32_t NAME(ints) __attribute__((vector_size(4 * WIDTH)));
typedef REAL NAME(reals) __attribute__((vector_size(sizeof(REAL) * WIDTH)));

#define CONVERTED(FUNCTION, RESULT, STORED)                                                                               \
    INLINE NAME(RESULT) NAME(FUNCTION)(const STORED *p)                                                                   \
    {                                                                                                                     \
        typedef STORED vector __attribute__((vector_size(sizeof(STORED) * WIDTH)));                                       \
        vector x;                                                                                                         \
        memcpy(&x, p, sizeof x);                                                                                          \
        return __builtin_convertvector(x, NAME(RESULT));                                                                  \
    }

#if LEVEL == 3 && WIDTH == 16
INLINE NAME(ints) NAME(ints_of_8)(const uint8_t *p) { return (NAME(ints))_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
INLINE NAME(ints) NAME(ints_of_16)(const uint16_t *p) { return (NAME(ints))_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)); }
#elif LEVEL >= 2 && WIDTH == 8
INLINE NAME(ints) NAME(ints_of_8)(const uint8_t *p) { return (NAME(ints))_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE NAME(ints) NAME(ints_of_16)(const uint16_t *p) { return (NAME(ints))_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)); }
#elif LEVEL == 2
INLINE NAME(ints) NAME(ints_of_8)(const uint8_t *p) { return (NAME(ints))_mm_cvtepu8_epi32(_mm_loadu_si32(p)); }
INLINE NAME(ints) NAME(ints_of_16)(const uint16_t *p) { return (NAME(ints))_mm_cvtepu16_epi32(_mm_loadl_epi64((const void *)p)); }
#elif LEVEL == 1 && WIDTH == 4
INLINE NAME(ints) NAME(ints_of_16)(const uint16_t *p) { return (NAME(ints))vmovl_u16(vld1_u16(p)); }
INLINE NAME(ints) NAME(ints_of_8)(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (NAME(ints))vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
#elif LEVEL == 1
INLINE NAME(ints) NAME(ints_of_16)(const uint16_t *p)
{
    uint32_t two;
    memcpy(&two, p, sizeof two);
    return (NAME(ints))vget_low_u32(vmovl_u16(vcreate_u16(two)));
}
INLINE NAME(ints) NAME(ints_of_8)(const uint8_t *p)
{
    uint16_t two;
    memcpy(&two, p, sizeof two);
    return (NAME(ints))vget_low_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(two)))));
}
#else
CONVERTED(ints_of_8, ints, uint8_t)
CONVERTED(ints_of_16, ints, uint16_t)
#endif
CONVERTED(ints_of_32, ints, int32_t)
CONVERTED(reals_of_float, reals, float)
CONVERTED(reals_of_double, reals, double)
#undef CONVERTED

INLINE NAME(reals) NAME(reals_of_ints)(NAME(ints) x)
{
#if LEVEL == 3 && !REAL_IS_FLOAT
    return (NAME(reals))_mm512_cvtepi32_pd((__m256i)x);
#elif LEVEL == 2 && !REAL_IS_FLOAT
    return (NAME(reals))_mm256_cvtepi32_pd((__m128i)x);
#elif LEVEL == 1 && !REAL_IS_FLOAT
    return (NAME(reals))vcvtq_f64_s64(vmovl_s32((int32x2_t)x));
#else
    return __builtin_convertvector(x, NAME(reals));
#endif
}
INLINE NAME(reals) NAME(reals_of_8)(const uint8_t *p) { return NAME(reals_of_ints)(NAME(ints_of_8)(p)); }
INLINE NAME(reals) NAME(reals_of_16)(const uint16_t *p) { return NAME(reals_of_ints)(NAME(ints_of_16)(p)); }

/* Loads and stores of floats as their upper halves. */
typedef float NAME(floats) __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t NAME(halves) __attribute__((vector_size(2 * WIDTH)));
INLINE VEC NAME(load_halves)(const uint16_t *p)
{
    NAME(halves) x;
    VEC out;
    memcpy(&x, p, sizeof x);
    const NAME(reals) y = __builtin_convertvector(FROM_UPPER_HALVES(x, NAME(bits), NAME(floats)), NAME(reals));
    memcpy(&out, &y, sizeof out);
    return out;
}
INLINE void NAME(store_halves)(uint16_t *p, VEC x)
{
    NAME(reals) y;
    memcpy(&y, &x, sizeof y);
    const NAME(halves) upper = UPPER_HALVES(__builtin_convertvector(y, NAME(floats)), NAME(bits), NAME(halves));
    memcpy(p, &upper, sizeof upper);
}

/* Gathers four coordinates of WIDTH rows of the held factor: loads of four numbers, joined and transposed in registers. */
INLINE void NAME(gather4)(const REAL *p, const uint32_t *at, VEC *a)
{
#if WIDTH == 16
    __m512 z[4];
    for (int j = 0; j < 4; j++) {
        z[j] = _mm512_castps128_ps512(_mm_load_ps(p + at[j]));
        z[j] = _mm512_insertf32x4(z[j], _mm_load_ps(p + at[4 + j]), 1);
        z[j] = _mm512_insertf32x4(z[j], _mm_load_ps(p + at[8 + j]), 2);
        z[j] = _mm512_insertf32x4(z[j], _mm_load_ps(p + at[12 + j]), 3);
    }
    __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(z[0], z[1])), hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(z[0], z[1]));
    __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(z[2], z[3])), hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(z[2], z[3]));
    a[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
    a[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
    a[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
    a[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
#elif WIDTH == 8 && LEVEL == 3
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512d z[4];
    for (int j = 0; j < 4; j++)
        z[j] = _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_load_pd(p + at[j])), _mm256_load_pd(p + at[4 + j]), 1);
    __m512d lo01 = _mm512_unpacklo_pd(z[0], z[1]), hi01 = _mm512_unpackhi_pd(z[0], z[1]);
    __m512d lo23 = _mm512_unpacklo_pd(z[2], z[3]), hi23 = _mm512_unpackhi_pd(z[2], z[3]);
    a[0] = _mm512_permutex2var_pd(lo01, even, lo23);
    a[1] = _mm512_permutex2var_pd(hi01, even, hi23);
    a[2] = _mm512_permutex2var_pd(lo01, odd, lo23);
    a[3] = _mm512_permutex2var_pd(hi01, odd, hi23);
#elif WIDTH == 8
    __m256 z[4];
    for (int j = 0; j < 4; j++)
        z[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(p + at[j])), _mm_load_ps(p + at[4 + j]), 1);
    __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(z[0], z[1])), hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(z[0], z[1]));
    __m256d lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(z[2], z[3])), hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(z[2], z[3]));
    a[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
    a[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
    a[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
    a[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
#elif WIDTH == 4 && LEVEL == 2
    __m256d z[4];
    for (int j = 0; j < 4; j++)
        z[j] = _mm256_load_pd(p + at[j]);
    __m256d lo01 = _mm256_unpacklo_pd(z[0], z[1]), hi01 = _mm256_unpackhi_pd(z[0], z[1]);
    __m256d lo23 = _mm256_unpacklo_pd(z[2], z[3]), hi23 = _mm256_unpackhi_pd(z[2], z[3]);
    a[0] = _mm256_permute2f128_pd(lo01, lo23, 0x20);
    a[1] = _mm256_permute2f128_pd(hi01, hi23, 0x20);
    a[2] = _mm256_permute2f128_pd(lo01, lo23, 0x31);
    a[3] = _mm256_permute2f128_pd(hi01, hi23, 0x31);
#elif WIDTH == 4 && LEVEL == 1
    float32x4_t z[4];
    for (int j = 0; j < 4; j++)
        z[j] = vld1q_f32(p + at[j]);
    float64x2_t lo01 = vreinterpretq_f64_f32(vzip1q_f32(z[0], z[1])), hi01 = vreinterpretq_f64_f32(vzip2q_f32(z[0], z[1]));
    float64x2_t lo23 = vreinterpretq_f64_f32(vzip1q_f32(z[2], z[3])), hi23 = vreinterpretq_f64_f32(vzip2q_f32(z[2], z[3]));
    a[0] = vreinterpretq_f32_f64(vzip1q_f64(lo01, lo23));
    a[1] = vreinterpretq_f32_f64(vzip2q_f64(lo01, lo23));
    a[2] = vreinterpretq_f32_f64(vzip1q_f64(hi01, hi23));
    a[3] = vreinterpretq_f32_f64(vzip2q_f64(hi01, hi23));
#elif WIDTH == 2 && LEVEL == 1
    for (int h = 0; h < 4; h += 2) {
        float64x2_t z0 = vld1q_f64(p + at[0] + h), z1 = vld1q_f64(p + at[1] + h);
        a[h] = vzip1q_f64(z0, z1), a[h + 1] = vzip2q_f64(z0, z1);
    }
#elif WIDTH == 4
    __m128 z0 = _mm_load_ps(p + at[0]), z1 = _mm_load_ps(p + at[1]), z2 = _mm_load_ps(p + at[2]), z3 = _mm_load_ps(p + at[3]);
    _MM_TRANSPOSE4_PS(z0, z1, z2, z3);
    a[0] = z0, a[1] = z1, a[2] = z2, a[3] = z3;
#elif WIDTH == 2
    for (int h = 0; h < 4; h += 2) {
        __m128d z0 = _mm_load_pd(p + at[0] + h), z1 = _mm_load_pd(p + at[1] + h);
        a[h] = _mm_unpacklo_pd(z0, z1), a[h + 1] = _mm_unpackhi_pd(z0, z1);
    }
#else
    for (int h = 0; h < 4; h++)
        a[h] = p[at[0] + h];
#endif
}

#if WIDTH == 16
/* Gathers eight coordinates at once, with half the loads. Rows (j, j + 4) and (8 + j, 12 + j) share a register, so that the last
 * shuffle leaves the lanes in order. */
INLINE void NAME(transpose_pairs)(const REAL *p, const uint32_t *at, __m512 *t)
{
    __m512 z[4];
    for (int j = 0; j < 4; j++)
        z[j] = _mm512_castpd_ps(_mm512_insertf64x4(
            _mm512_castpd256_pd512(_mm256_castps_pd(_mm256_loadu_ps(p + at[j]))), _mm256_castps_pd(_mm256_loadu_ps(p + at[4 + j])), 1));
    __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(z[0], z[1])), hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(z[0], z[1]));
    __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(z[2], z[3])), hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(z[2], z[3]));
    t[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23)), t[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
    t[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23)), t[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
}

INLINE void NAME(gather8)(const REAL *p, const uint32_t *at, VEC *a)
{
    __m512 first[4], last[4];
    NAME(transpose_pairs)(p, at, first);
    NAME(transpose_pairs)(p, at + 8, last);
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(first[i], last[i], 0x88);
        a[4 + i] = _mm512_shuffle_f32x4(first[i], last[i], 0xdd);
    }
}
#else
INLINE void NAME(gather8)(const REAL *p, const uint32_t *at, VEC *a)
{
    NAME(gather4)(p, at, a);
    NAME(gather4)(p + 4, at, a + 4);
}
#endif

/* GROUP neighbouring coordinates of one row, at every level: work that needs no transposing uses rows as they are stored. */
typedef REAL NAME(group) __attribute__((vector_size(GROUP * sizeof(REAL))));

/* y a + sum, rounded as by FMA */
INLINE NAME(group) NAME(fma_group)(REAL y, NAME(group) a, NAME(group) sum)
{
#if LEVEL >= 2 && REAL_IS_FLOAT
    return (NAME(group))_mm_fmadd_ps(_mm_set1_ps(y), (__m128)a, (__m128)sum);
#elif LEVEL >= 2
    return (NAME(group))_mm256_fmadd_pd(_mm256_set1_pd(y), (__m256d)a, (__m256d)sum);
#elif LEVEL == 1
    UNROLL for (int i = 0; i < GROUP; i++)
        sum[i] = REAL_IS_FLOAT ? (REAL)__builtin_fmaf((float)y, (float)a[i], (float)sum[i]) : (REAL)__builtin_fma(y, a[i], sum[i]);
    return sum;
#else
    return a * y + sum;
#endif
}

/* Natural logarithm of positive normal numbers, by the same operations at every width: x = 2^e m with m in
 * [1/sqrt 2, sqrt 2).  float: log m = f - f^2 / 2 + f^3 p(f), f = m - 1, without a division; p minimises the largest relative
 * error (3e-8).  double: log m = 2 atanh((m - 1) / (m + 1)). */
INLINE VEC NAME(vlog)(VEC x)
{
#if WIDTH == 1
    return (REAL)log(x);
#elif REAL_IS_FLOAT
    BITS e = SHIFT_RIGHT(BITS_SUB(TO_BITS(x), BITS1(0x3f3504f3)), 23);
    VEC f = FROM_BITS(BITS_SUB(TO_BITS(x), SHIFT_LEFT(e, 23))) - SET1(1);
    VEC exponent = SMALL_INT(e), p = SET1(0.0870036099f);
    p = FMA(f, p, SET1(-0.14267477f));
    p = FMA(f, p, SET1(0.149147869f));
    p = FMA(f, p, SET1(-0.165775859f));
    p = FMA(f, p, SET1(0.199630623f));
    p = FMA(f, p, SET1(-0.25001337f));
    p = FMA(f, p, SET1(0.333339108f));
    p = FMA(f, p, SET1(-0.5f));
    return FMA(exponent, SET1(0.693147181f), FMA(f * f, p, f));
#else
    const int64_t one = 1023LL << 52;
    BITS shifted = BITS_SUB(TO_BITS(x), BITS1(0x3fe6a09e667f3bcdLL - one));
    BITS e = SHIFT_RIGHT(shifted, 52);
    VEC m = FROM_BITS(BITS_SUB(TO_BITS(x), BITS_SUB(SHIFT_LEFT(e, 52), BITS1(one))));
    /* 2^52 + e as bits: the only conversion of 64-bit integers that SSE2 and AVX2 have */
    VEC exponent = FROM_BITS(BITS_ADD(e, BITS1(0x4330000000000000LL))) - SET1(4503599627370496.0 + 1023.0);
    VEC s = (m - SET1(1)) / (m + SET1(1)), z = s * s, p = SET1(2.0 / 19);
    p = FMA(z, p, SET1(2.0 / 17));
    p = FMA(z, p, SET1(2.0 / 15));
    p = FMA(z, p, SET1(2.0 / 13));
    p = FMA(z, p, SET1(2.0 / 11));
    p = FMA(z, p, SET1(2.0 / 9));
    p = FMA(z, p, SET1(2.0 / 7));
    p = FMA(z, p, SET1(2.0 / 5));
    p = FMA(z, p, SET1(2.0 / 3));
    p = FMA(z, p, SET1(2));
    return FMA(exponent, SET1(0.69314718055994530942), s * p);
#endif
}

/* Exponential, by the same operations at every width: x = n log 2 + r with |r| <= log(2) / 2; adding n to the exponent multiplies
 * by 2^n.  Returns 0 if the result would be subnormal; x must not be so large that the result overflows. */
INLINE VEC NAME(vexp)(VEC x)
{
#if WIDTH == 1
    return (REAL)exp(x);
#elif REAL_IS_FLOAT
    const VEC least = SET1(-87), whole = SET1(12582912.0f);      /* 1.5 2^23: its lower bits are an integer */
    const VEC normal = AT_LEAST(x, least);
    x = VMAX(x, least);
    const VEC shifted = FMA(x, SET1(1.44269504f), whole), n = shifted - whole;
    const VEC r = FNMA(n, SET1(-2.12194440e-4f), FNMA(n, SET1(0.693359375f), x));
    VEC p = SET1(1.0f / 5040);
    p = FMA(r, p, SET1(1.0f / 720));
    p = FMA(r, p, SET1(1.0f / 120));
    p = FMA(r, p, SET1(1.0f / 24));
    p = FMA(r, p, SET1(1.0f / 6));
    p = FMA(r, p, SET1(0.5f));
    p = FMA(r * r, p, r) + SET1(1);
    return normal * FROM_BITS(BITS_ADD(TO_BITS(p), SHIFT_LEFT(TO_BITS(shifted), 23)));
#else
    const VEC least = SET1(-708), whole = SET1(6755399441055744.0);
    const VEC normal = AT_LEAST(x, least);
    x = VMAX(x, least);
    const VEC shifted = FMA(x, SET1(1.44269504088896340736), whole), n = shifted - whole;
    const VEC r = FNMA(n, SET1(1.90821492927058770002e-10), FNMA(n, SET1(6.93147180369123816490e-1), x));
    VEC p = SET1(1.0 / 6227020800);
    p = FMA(r, p, SET1(1.0 / 479001600));
    p = FMA(r, p, SET1(1.0 / 39916800));
    p = FMA(r, p, SET1(1.0 / 3628800));
    p = FMA(r, p, SET1(1.0 / 362880));
    p = FMA(r, p, SET1(1.0 / 40320));
    p = FMA(r, p, SET1(1.0 / 5040));
    p = FMA(r, p, SET1(1.0 / 720));
    p = FMA(r, p, SET1(1.0 / 120));
    p = FMA(r, p, SET1(1.0 / 24));
    p = FMA(r, p, SET1(1.0 / 6));
    p = FMA(r, p, SET1(0.5));
    p = FMA(r * r, p, r) + SET1(1);
    return normal * FROM_BITS(BITS_ADD(TO_BITS(p), SHIFT_LEFT(TO_BITS(shifted), 52)));
#endif
}

/* Argument shift for the gamma functions of x > 0: z = x, or x + RAISE if x < RAISE.  With w = z - 1/2,
 * exp(psi(z)) = w + 1/(24 w) - 37/(5760 w^3) + ....  The shift is undone by psi(x) = psi(z) - sum_i 1/(x + i) and
 * Gamma(x) = Gamma(z) / prod_i (x + i) over i < RAISE; factors i and RAISE - 1 - i are combined. */
#define RAISE (REAL_IS_FLOAT ? 4 : 8)
/* the smallest normal number; the largest number whose exponential is finite */
#define SMALLEST (REAL)(REAL_IS_FLOAT ? 0x1p-126 : 0x1p-1022)
#define EXP_MOST (REAL)(REAL_IS_FLOAT ? 88.7f : 709.7)
typedef struct {
    VEC w, square, product, sum;                          /* square: 1 / w^2 */
} NAME(raised);

INLINE NAME(raised) NAME(raise)(VEC x)
{
    const VEC low = SET1(1) - AT_LEAST(x, SET1(RAISE)), one = SET1(1);
    const VEC y = SET1(0) - VMAX(SET1(0) - x, SET1(-RAISE));     /* products of larger numbers would overflow */
    const VEC q = y * (y + SET1(RAISE - 1));
    NAME(raised) out;
#if REAL_IS_FLOAT
    const VEC product = q * (q + SET1(2)), derivative = q + (q + SET1(2));
#else
    const VEC ends = q * (q + SET1(6)), middle = (q + SET1(10)) * (q + SET1(12));
    const VEC product = ends * middle, derivative = FMA(q + (q + SET1(6)), middle, ends * ((q + SET1(10)) + (q + SET1(12))));
#endif
    out.w = FMA(low, SET1(RAISE), x) - SET1((REAL)0.5);
    out.square = one / out.w;
    out.square *= out.square;
    out.product = FMA(low, product, one - low);
    out.sum = low * ((y + (y + SET1(RAISE - 1))) * derivative / product);
    return out;
}

/* exp(psi(z)), accurate to rounding. */
INLINE VEC NAME(exp_digamma_raised)(NAME(raised) z)
{
    const VEC v = z.square;
#if REAL_IS_FLOAT
    VEC p = SET1(-0.0039535574f);
#else
    VEC p = SET1(3.0348228731805738);
    p = FMA(v, p, SET1(-0.43960443686008127));
    p = FMA(v, p, SET1(0.08238185223878776));
    p = FMA(v, p, SET1(-0.020734675824368137));
    p = FMA(v, p, SET1(0.007365033269308669));
    p = FMA(v, p, SET1(-5509121.0 / 1393459200));
#endif
    p = FMA(v, p, SET1((REAL)(10313.0 / 2903040)));
    p = FMA(v, p, SET1((REAL)(-37.0 / 5760)));
    p = FMA(v, p, SET1((REAL)(1.0 / 24)));
    return FMA(z.w * v, p, z.w);
}

INLINE VEC NAME(vexp_digamma)(VEC x)
{
    const NAME(raised) z = NAME(raise)(x);
    return NAME(exp_digamma_raised)(z) * NAME(vexp)(SET1(0) - z.sum);
}

INLINE VEC NAME(vdigamma)(VEC x)
{
    const NAME(raised) z = NAME(raise)(x);
    return NAME(vlog)(NAME(exp_digamma_raised)(z)) - z.sum;
}

/* log Gamma(z) = w log w - w + log(2 pi) / 2 - 1/(24 w) + 7/(2880 w^3) - ... */
INLINE VEC NAME(vlog_gamma)(VEC x)
{
    const NAME(raised) z = NAME(raise)(x);
    const VEC v = z.square;
#if REAL_IS_FLOAT
    VEC p = SET1(0.00059058780f);
#else
    VEC p = SET1(-0.17964300179103845);
    p = FMA(v, p, SET1(0.029549751780391518));
    p = FMA(v, p, SET1(-0.006409473908253205));
    p = FMA(v, p, SET1(0.0019165906250867188));
    p = FMA(v, p, SET1(-511.0 / 608256));
    p = FMA(v, p, SET1(127.0 / 215040));
#endif
    p = FMA(v, p, SET1((REAL)(-31.0 / 40320)));
    p = FMA(v, p, SET1((REAL)(7.0 / 2880)));
    p = FMA(v, p, SET1((REAL)(-1.0 / 24)));
    p = FMA(z.w * v, p, SET1((REAL)0.91893853320467274178));
    return FMA(z.w, NAME(vlog)(z.w) - SET1(1), p) - NAME(vlog)(z.product);
}

/* psi'(z) = 1/w - 1/(12 w^3) + 7/(240 w^5) - ..., and psi'(x) = psi'(z) + sum_i 1/(x + i)^2. */
INLINE VEC NAME(vtrigamma)(VEC x)
{
    const NAME(raised) z = NAME(raise)(x);
    const VEC v = z.square, low = SET1(1) - AT_LEAST(x, SET1(RAISE)), y = SET1(0) - VMAX(SET1(0) - x, SET1(-RAISE));
    VEC sum = SET1(0), p = SET1((REAL)(1982765468311237.0 / 22900899840));
    p = FMA(v, p, SET1((REAL)(-1792042792463.0 / 289406976)));
    p = FMA(v, p, SET1((REAL)(91546277357.0 / 173015040)));
    p = FMA(v, p, SET1((REAL)(-5749691557.0 / 104595456)));
    p = FMA(v, p, SET1((REAL)(118518239.0 / 16711680)));
    p = FMA(v, p, SET1((REAL)(-57337.0 / 49152)));
    p = FMA(v, p, SET1((REAL)(1414477.0 / 5591040)));
    p = FMA(v, p, SET1((REAL)(-2555.0 / 33792)));
    p = FMA(v, p, SET1((REAL)(127.0 / 3840)));
    p = FMA(v, p, SET1((REAL)(-31.0 / 1344)));
    p = FMA(v, p, SET1((REAL)(7.0 / 240)));
    p = FMA(v, p, SET1((REAL)(-1.0 / 12)));
    p = FMA(v, p, SET1(1)) / z.w;
    for (int i = RAISE - 1; i >= 0; i--) {
        const VEC ratio = SET1(1) / (y + SET1((REAL)i));
        sum = FMA(ratio, ratio, sum);
    }
    return FMA(low, sum, p);
}
