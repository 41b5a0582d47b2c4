/*
 * lanes_avx2.h - eight float lanes under the names that lanes_avx512.h explains.
 */
#ifndef PTAC_OPS_MATH_LANES_AVX2_H
#define PTAC_OPS_MATH_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx2,fma,popcnt")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum {
    LANES = 8,
};

#define LANES_TABLE(name) name##_8

typedef __m256 vec;
typedef __m256 mask; /* lanes of all ones or all zeros */

#define v_zero          _mm256_setzero_ps
#define v_set           _mm256_set1_ps
#define v_load          _mm256_loadu_ps
#define v_store         _mm256_storeu_ps
#define v_add           _mm256_add_ps
#define v_sub           _mm256_sub_ps
#define v_mul           _mm256_mul_ps
#define v_div           _mm256_div_ps
#define v_fma           _mm256_fmadd_ps
#define v_fnma          _mm256_fnmadd_ps
#define v_max           _mm256_max_ps
#define v_min           _mm256_min_ps
#define v_less(a, b)    _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define v_at_most(a, b) _mm256_cmp_ps(a, b, _CMP_LE_OQ)
#define v_pick(m, a, b) _mm256_blendv_ps(b, a, m) /* m ? a : b */

INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE mask v_first(int n)
{
    return _mm256_castsi256_ps(first_lanes(n));
}

INLINE vec v_load_first(const float *p, int n)
{
    if (n == LANES)
        return v_load(p);
    return _mm256_maskload_ps(p, first_lanes(n));
}

/* Masked stores take dozens of steps on AMD's CPUs; a branch on n is foreseen. */
INLINE void v_store_first(float *p, vec v, int n)
{
    __m128 part = _mm256_castps256_ps128(v);

    if (n == LANES) {
        v_store(p, v);
        return;
    }
    if (n & 4) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps(v, 1);
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

INLINE vec v_abs(vec v)
{
    return _mm256_andnot_ps(v_set(-0.0f), v);
}

INLINE vec v_with_sign(vec v, vec s)
{
    return _mm256_or_ps(v_abs(v), _mm256_and_ps(s, v_set(-0.0f)));
}

INLINE vec v_round(vec v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vec power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two steps, of which only the second can leave the normal numbers. */
INLINE vec v_scale(vec v, vec n)
{
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);

    return v_mul(v_mul(v, power_of_two(half)),
                 power_of_two(_mm256_sub_epi32(whole, half)));
}

INLINE vec v_split(vec v, vec *n)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i half = _mm256_set1_epi32(0x3f3504f3); /* sqrt(1/2) */
    const __m256i whole = _mm256_srai_epi32(_mm256_sub_epi32(bits, half), 23);

    *n = _mm256_cvtepi32_ps(whole);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(whole, 23)));
}

INLINE float v_sum(vec v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE float v_largest(vec v)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE vec v_lookup(const float table[LANES], vec index)
{
    return _mm256_permutevar8x32_ps(v_load(table), _mm256_castps_si256(index));
}

INLINE void v_add_to_f64(double *sums, vec v)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));

    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), high));
}

INLINE double v_sum_f64(vec v)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two =
        _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));

    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE vec v_keep_first(vec v, vec other, int n)
{
    if (n == LANES)
        return v;
    return _mm256_blendv_ps(other, v, v_first(n));
}

INLINE void v_transpose(vec rows[LANES])
{
    vec pairs[LANES], fours[LANES];

    /* Within each half: 2x2 blocks, then 4x4. */
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    /* Then the halves. */
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

#endif
