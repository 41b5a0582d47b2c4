/*
 * lanes_avx512.h - the words of lanes.h for sixteen float lanes.
 */
#ifndef PTAC_OPS_MATH_LANES_AVX512_H
#define PTAC_OPS_MATH_LANES_AVX512_H

#include <immintrin.h>

#define TARGET                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,popcnt")))
#define VECTOR _mm512_

enum {
    LANES = 16,
};

#define LANES_TABLE(name) name##_16

typedef __m512 vec;
typedef __m512d vec_f64;
typedef __m512i ints;
typedef __mmask16 mask;

/* A mask costs nothing more, a branch might. */
#define v_all(n)           (__builtin_constant_p(n) && (n) == LANES)
#define v_first(n)         ((mask)((1u << (n)) - 1))
#define v_between(a, b)    ((mask)(v_first(b) & ~v_first(a)))
#define v_load_where(p, m) _mm512_maskz_loadu_ps(m, p)
#define v_load_some(p, n)  v_load_where(p, v_first(n))
#define v_stream           _mm512_stream_ps
#define v_compare          _mm512_cmp_ps_mask
#define v_pick(m, a, b)    _mm512_mask_blend_ps(m, b, a) /* m ? a : b */
#define v_round(v)                                                                     \
    _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define v_scale             _mm512_scalef_ps
#define v_sum               _mm512_reduce_add_ps
#define v_largest           _mm512_reduce_max_ps
#define v_total             _mm512_reduce_add_pd
#define v_low               _mm512_castps512_ps256
#define v_high(v)           _mm512_extractf32x8_ps(v, 1)
#define v_permute(table, i) _mm512_permutexvar_ps(i, table)

#define v_fold(v) fold_parts(_mm256_add_ps(v_low(v), v_high(v)))

TARGET static inline __attribute__((always_inline)) __m128 fold_parts(__m256 v)
{
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

#include "ops/math/lanes.h"

INLINE void v_store_first(float *p, vec v, int n)
{
    if (v_all(n))
        v_store(p, v);
    else
        _mm512_mask_storeu_ps(p, v_first(n), v);
}

/*
 * What few instructions do here and others have no word for: see quick_tpl.h.
 * min(|v|, most), which is most of NaN; v with its sign changed where s has one;
 * table[i] of 32, where the index i is in the low bits of a lane.
 */
#define LANES_ARE_QUICK
#define v_magnitude(v, most) _mm512_range_ps(v, most, 10)

INLINE vec v_flip(vec v, vec s)
{
    return (vec)_mm512_ternarylogic_epi32((ints)v, (ints)s, (ints)v_set(-0.0f), 0x78);
}

INLINE vec v_lookup_32(const float table[2 * LANES], vec index)
{
    return _mm512_permutex2var_ps(v_load(table), (ints)index, v_load(table + LANES));
}

/* The same of bfloat16, the lower halves of lanes. */
INLINE void v_store_halves(uint16_t *p, __m256i halves, int n)
{
    if (v_all(n))
        _mm256_storeu_si256((__m256i *)p, halves);
    else
        _mm256_mask_storeu_epi16(p, v_first(n), halves);
}

/* Elements 0, 2, ... of a, then those of b. */
INLINE vec v_evens(vec a, vec b)
{
    const ints even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

    return _mm512_permutex2var_ps(a, even, b);
}

/* a[0], b[0], a[1], b[1], ... */
INLINE vec v_zip_low(vec a, vec b)
{
    const ints zipped =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);

    return _mm512_permutex2var_ps(a, zipped, b);
}

/* The rest. */
INLINE vec v_zip_high(vec a, vec b)
{
    const ints zipped =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);

    return _mm512_permutex2var_ps(a, zipped, b);
}

INLINE void v_transpose(vec rows[LANES])
{
    transpose_parts(rows);
    /* The parts are a 4x4 matrix themselves. */
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        const vec a = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
        const vec b = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
        const vec c = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
        const vec d = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);

        rows[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        rows[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        rows[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#endif
