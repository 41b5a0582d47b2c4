/*
 * lanes_avx512.h - sixteen float lanes under the names that lanes_avx2.h also gives
 * its eight, so that one text serves both. One of the two is included in a file.
 *
 *   v_load_first, v_store_first   the first n lanes; no memory behind them is touched
 *   v_fma, v_fnma                 a * b + c and c - a * b, rounded once
 *   v_max, v_min                  b where either is NaN, so NaN in b stays
 *   v_scale(v, n)                 v * 2^n for a whole n, -250 < n < 250; rounded once
 */
#ifndef PTAC_OPS_MATH_LANES_AVX512_H
#define PTAC_OPS_MATH_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define TARGET                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,popcnt")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum {
    LANES = 16,
};

#define LANES_TABLE(name) name##_16

typedef __m512 vec;
typedef __mmask16 mask;

#define v_zero          _mm512_setzero_ps
#define v_set           _mm512_set1_ps
#define v_load          _mm512_loadu_ps
#define v_store         _mm512_storeu_ps
#define v_add           _mm512_add_ps
#define v_sub           _mm512_sub_ps
#define v_mul           _mm512_mul_ps
#define v_div           _mm512_div_ps
#define v_fma           _mm512_fmadd_ps
#define v_fnma          _mm512_fnmadd_ps
#define v_max           _mm512_max_ps
#define v_min           _mm512_min_ps
#define v_scale         _mm512_scalef_ps
#define v_sum           _mm512_reduce_add_ps
#define v_largest       _mm512_reduce_max_ps
#define v_less(a, b)    _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define v_at_most(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ)
#define v_pick(m, a, b) _mm512_mask_blend_ps(m, b, a) /* m ? a : b */

INLINE mask v_first(int n)
{
    return (mask)((1u << n) - 1);
}

INLINE vec v_load_first(const float *p, int n)
{
    if (__builtin_constant_p(n) && n == LANES)
        return v_load(p);
    return _mm512_maskz_loadu_ps(v_first(n), p);
}

INLINE void v_store_first(float *p, vec v, int n)
{
    if (__builtin_constant_p(n) && n == LANES)
        v_store(p, v);
    else
        _mm512_mask_storeu_ps(p, v_first(n), v);
}

INLINE vec v_abs(vec v)
{
    return _mm512_andnot_ps(v_set(-0.0f), v);
}

/* The magnitude of v with the sign of s. */
INLINE vec v_with_sign(vec v, vec s)
{
    return _mm512_or_ps(v_abs(v), _mm512_and_ps(s, v_set(-0.0f)));
}

INLINE vec v_round(vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* A positive normal v as m * 2^n with sqrt(1/2) <= m < sqrt(2); returns m. */
INLINE vec v_split(vec v, vec *n)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i half = _mm512_set1_epi32(0x3f3504f3); /* sqrt(1/2) */
    const __m512i whole = _mm512_srai_epi32(_mm512_sub_epi32(bits, half), 23);

    *n = _mm512_cvtepi32_ps(whole);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(whole, 23)));
}

/* table[i], where the index i is in the low bits of a lane. */
INLINE vec v_lookup(const float table[LANES], vec index)
{
    return _mm512_permutexvar_ps(_mm512_castps_si512(index), v_load(table));
}

/* sums[i] += v[i] */
INLINE void v_add_to_f64(double *sums, vec v)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));

    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), low));
    _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), high));
}

INLINE double v_sum_f64(vec v)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));

    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

/* Lanes [n, LANES) of v become those of other. */
INLINE vec v_keep_first(vec v, vec other, int n)
{
    if (__builtin_constant_p(n) && n == LANES)
        return v;
    return _mm512_mask_blend_ps(v_first(n), other, v);
}

/* rows[i][j] and rows[j][i] change places. */
INLINE void v_transpose(vec rows[LANES])
{
    vec pairs[LANES], fours[LANES];

    /* Within each quarter: 2x2 blocks, then 4x4. */
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 4) {
        fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    /* Then the quarters, a 4x4 matrix themselves. */
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        const vec a = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
        const vec b = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
        const vec c = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd);
        const vec d = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);

        rows[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        rows[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        rows[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#endif
