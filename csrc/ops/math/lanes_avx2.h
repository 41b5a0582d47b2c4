/*
 * lanes_avx2.h - the words of lanes.h for eight float lanes.
 */
#ifndef PTAC_OPS_MATH_LANES_AVX2_H
#define PTAC_OPS_MATH_LANES_AVX2_H

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,popcnt")))
#define VECTOR _mm256_

enum {
    LANES = 8,
};

#define LANES_TABLE(name) name##_8

typedef __m256 vec;
typedef __m256d vec_f64;
typedef __m256i ints;
typedef __m256 mask; /* lanes of all ones or all zeros */

#define v_all(n)           ((n) == LANES)
#define v_first(n)         ((mask)first_lanes(n))
#define v_between(a, b)    _mm256_andnot_ps(v_first(a), v_first(b))
#define v_load_where(p, m) _mm256_maskload_ps(p, (ints)(m))
#define v_load_some(p, n)  _mm256_maskload_ps(p, first_lanes(n))
#define v_stream           _mm256_stream_ps
#define v_compare          _mm256_cmp_ps
#define v_pick(m, a, b)    _mm256_blendv_ps(b, a, m) /* m ? a : b */
#define v_low              _mm256_castps256_ps128
#define v_high(v)          _mm256_extractf128_ps(v, 1)
#define v_permute          _mm256_permutevar8x32_ps

__attribute__((target("avx2"), always_inline)) static inline ints first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* (0 + 1) + (2 + 3) */
__attribute__((target("avx2"), always_inline)) static inline double v_total(vec_f64 v)
{
    const __m128d low = _mm256_castpd256_pd128(v), high = _mm256_extractf128_pd(v, 1);
    const __m128d first = _mm_add_sd(low, _mm_unpackhi_pd(low, low));

    return _mm_cvtsd_f64(
        _mm_add_sd(first, _mm_add_sd(high, _mm_unpackhi_pd(high, high))));
}

#define v_round(v) _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

#define v_fold(v) _mm_add_ps(v_low(v), v_high(v))

#include "ops/math/lanes.h"

/* Masked stores take dozens of steps on AMD's CPUs; a branch on n is foreseen. */
INLINE void v_store_first(float *p, vec v, int n)
{
    __m128 part = v_low(v);

    if (n == LANES) {
        v_store(p, v);
        return;
    }
    if (n & 4) {
        _mm_storeu_ps(p, part);
        part = v_high(v);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)p, part);
        part = _mm_movehl_ps(part, part);
        p += 2;
    }
    if (n & 1)
        _mm_store_ss(p, part);
}

INLINE vec power_of_two(ints n)
{
    return (vec)EPI32(slli)(EPI32(add)(n, EPI32(set1)(127)), 23);
}

/* In two steps, of which only the second can leave the normal numbers. */
INLINE vec v_scale(vec v, vec n)
{
    const ints whole = _mm256_cvtps_epi32(n), half = EPI32(srai)(whole, 1);

    return v_mul(v_mul(v, power_of_two(half)), power_of_two(EPI32(sub)(whole, half)));
}

#define DEFINE_REDUCTION(name, op)                                                     \
    INLINE float name(vec v)                                                           \
    {                                                                                  \
        __m128 four = _mm_##op##_ps(v_low(v), v_high(v));                              \
                                                                                       \
        four = _mm_##op##_ps(four, _mm_movehl_ps(four, four));                         \
        return _mm_cvtss_f32(_mm_##op##_ss(four, _mm_movehdup_ps(four)));              \
    }
DEFINE_REDUCTION(v_sum, add)
DEFINE_REDUCTION(v_largest, max)

/* Elements 0, 2, ... of a, then those of b. */
INLINE vec v_evens(vec a, vec b)
{
    const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));

    return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xd8));
}

/* a[0], b[0], a[1], b[1], ... */
INLINE vec v_zip_low(vec a, vec b)
{
    return _mm256_permute2f128_ps(PS(unpacklo)(a, b), PS(unpackhi)(a, b), 0x20);
}

/* The rest. */
INLINE vec v_zip_high(vec a, vec b)
{
    return _mm256_permute2f128_ps(PS(unpacklo)(a, b), PS(unpackhi)(a, b), 0x31);
}

INLINE void v_transpose(vec rows[LANES])
{
    transpose_parts(rows);
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        const vec low = rows[i], high = rows[i + 4];

        rows[i] = _mm256_permute2f128_ps(low, high, 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

#endif
