/*
 * lanes_avx512.h - the words of lanes.h for AVX-512, sixteen floats or eight doubles.
 *
 * A bfloat16 is computed with as a float, so most of its words are float's.
 */
#ifndef PTAC_OPS_POOL_LANES_AVX512_H
#define PTAC_OPS_POOL_LANES_AVX512_H

#include "ops/pool/lanes.h"

#include <immintrin.h>
#include <stdint.h>

#define TARGET                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,popcnt")))

typedef __m512 vec_f32, vec_bf16;
typedef __m512d vec_f64;
typedef __m512i ivec_f32, ivec_bf16;
typedef __m256i ivec_f64;
typedef __mmask16 mask_f32, mask_bf16;
typedef __mmask8 mask_f64;
typedef uint32_t span_f32, span_bf16, span_f64; /* a bit an element */

enum {
    lanes_f32 = 16,
    lanes_bf16 = 16,
    lanes_f64 = 8,
};

/* Masks. */

TARGET static inline mask_f32 range_f32(int lo, int hi)
{
    return (mask_f32)((1u << hi) - (1u << lo));
}

TARGET static inline mask_f64 range_f64(int lo, int hi)
{
    return (mask_f64)((1u << hi) - (1u << lo));
}

/* The first 2n elements of a pair of vectors. */
TARGET static inline uint32_t pairs_mask(int n)
{
    return (uint32_t)((UINT64_C(1) << 2 * n) - 1);
}

static inline uint32_t span_of_f32(int64_t stride, int lo, int hi)
{
    if (hi <= lo)
        return 0;
    if (stride == 1)
        return (1u << hi) - (1u << lo);
    return (uint32_t)((UINT64_C(1) << (2 * hi - 1)) - (UINT64_C(1) << 2 * lo));
}

#define either_f32(a, b)    ((mask_f32)((a) | (b)))
#define either_f64(a, b)    ((mask_f64)((a) | (b)))
#define both_f32(a, b)      ((mask_f32)((a) & (b)))
#define both_f64(a, b)      ((mask_f64)((a) & (b)))
#define is_none_f32(m)      ((m) == 0)
#define count_f32(m)        __builtin_popcount(m)
#define greater_f32(a, b)   _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define greater_f64(a, b)   _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ)
#define unordered_f32(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define unordered_f64(a, b) _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
#define iequal_f32          _mm512_cmpeq_epi32_mask
#define iequal_f64          _mm256_cmpeq_epi32_mask

/* Values. */

TARGET static inline vec_f32 load_span_f32(const float *p, uint32_t span)
{
    return _mm512_maskz_loadu_ps((__mmask16)span, p);
}

TARGET static inline vec_f64 load_span_f64(const double *p, uint32_t span)
{
    return _mm512_maskz_loadu_pd((__mmask8)span, p);
}

TARGET static inline vec_f32 widen(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

TARGET static inline vec_f32 load_span_bf16(const uint16_t *p, uint32_t span)
{
    return widen(_mm256_maskz_loadu_epi16((__mmask16)span, p));
}

TARGET static inline vec_f32 load_f32(const float *p, int n)
{
    return n == lanes_f32 ? _mm512_loadu_ps(p) : load_span_f32(p, range_f32(0, n));
}

TARGET static inline vec_f64 load_f64(const double *p, int n)
{
    return n == lanes_f64 ? _mm512_loadu_pd(p) : load_span_f64(p, range_f64(0, n));
}

TARGET static inline vec_bf16 load_bf16(const uint16_t *p, int n)
{
    return load_span_bf16(p, range_f32(0, n));
}

TARGET static inline __m512i evens_f32(void)
{
    return _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
}

TARGET static inline __m512i evens_f64(void)
{
    return _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
}

TARGET static inline vec_f32 load2_span_f32(const float *p, uint32_t span)
{
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)span, p);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(span >> 16), p + 16);

    return _mm512_permutex2var_ps(low, evens_f32(), high);
}

TARGET static inline vec_f64 load2_span_f64(const double *p, uint32_t span)
{
    const __m512d low = _mm512_maskz_loadu_pd((__mmask8)span, p);
    const __m512d high = _mm512_maskz_loadu_pd((__mmask8)(span >> 8), p + 8);

    return _mm512_permutex2var_pd(low, evens_f64(), high);
}

/* The even halves are the low ones of each 32-bit lane, the odd ones the high. */
TARGET static inline vec_bf16 load2_span_bf16(const uint16_t *p, uint32_t span)
{
    const __m512i pairs = _mm512_maskz_loadu_epi16(span, p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

TARGET static inline void load_pairs_f32(const float *p, int n, __m512 *even,
                                         __m512 *odd)
{
    const uint32_t mask = pairs_mask(n);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, p);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), p + 16);
    const __m512i odds = _mm512_add_epi32(evens_f32(), _mm512_set1_epi32(1));

    *even = _mm512_permutex2var_ps(low, evens_f32(), high);
    *odd = _mm512_permutex2var_ps(low, odds, high);
}

TARGET static inline void load_pairs_f64(const double *p, int n, __m512d *even,
                                         __m512d *odd)
{
    const uint32_t mask = pairs_mask(n);
    const __m512d low = _mm512_maskz_loadu_pd((__mmask8)mask, p);
    const __m512d high = _mm512_maskz_loadu_pd((__mmask8)(mask >> 8), p + 8);
    const __m512i odds = _mm512_add_epi64(evens_f64(), _mm512_set1_epi64(1));

    *even = _mm512_permutex2var_pd(low, evens_f64(), high);
    *odd = _mm512_permutex2var_pd(low, odds, high);
}

TARGET static inline void load_pairs_bf16(const uint16_t *p, int n, __m512 *even,
                                          __m512 *odd)
{
    const __m512i pairs = _mm512_maskz_loadu_epi16(pairs_mask(n), p);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);

    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
}

/*
 * The first bytes of v, an even number, in whole pieces: Zen 5 takes ten times as long
 * for a masked store as for a plain one when the line is not in its first cache.
 */
TARGET static inline __attribute__((always_inline)) void put(void *p, __m512i v,
                                                             int bytes)
{
    char *at = p;
    __m256i half = _mm512_castsi512_si256(v);
    __m128i quarter;

    if (bytes >= 64) {
        _mm512_storeu_si512(p, v);
        return;
    }
    if (bytes & 32) {
        _mm256_storeu_si256((__m256i *)at, half);
        half = _mm512_extracti64x4_epi64(v, 1);
        at += 32;
    }
    quarter = _mm256_castsi256_si128(half);
    if (bytes & 16) {
        _mm_storeu_si128((__m128i *)at, quarter);
        quarter = _mm256_extracti128_si256(half, 1);
        at += 16;
    }
    if (bytes & 8) {
        _mm_storel_epi64((__m128i *)at, quarter);
        quarter = _mm_unpackhi_epi64(quarter, quarter);
        at += 8;
    }
    if (bytes & 4) {
        _mm_storeu_si32(at, quarter);
        quarter = _mm_srli_epi64(quarter, 32);
        at += 4;
    }
    if (bytes & 2)
        _mm_storeu_si16(at, quarter);
}

TARGET static inline void store_f32(float *p, vec_f32 v, int n)
{
    put(p, _mm512_castps_si512(v), 4 * n);
}

TARGET static inline void store_f64(double *p, vec_f64 v, int n)
{
    put(p, _mm512_castpd_si512(v), 8 * n);
}

TARGET static inline void store_bf16(uint16_t *p, vec_bf16 v, int n)
{
    const __m256i halves =
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16));

    put(p, _mm512_castsi256_si512(halves), 2 * n);
}

TARGET static inline void store_pairs_f32(float *p, vec_f32 even, vec_f32 odd, int n)
{
    const __m512i low =
        _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));

    store_f32(p, _mm512_permutex2var_ps(even, low, odd), 2 * n);
    if (n > 8)
        store_f32(p + 16, _mm512_permutex2var_ps(even, high, odd), 2 * n - 16);
}

TARGET static inline void store_pairs_f64(double *p, vec_f64 even, vec_f64 odd, int n)
{
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));

    store_f64(p, _mm512_permutex2var_pd(even, low, odd), 2 * n);
    if (n > 4)
        store_f64(p + 8, _mm512_permutex2var_pd(even, high, odd), 2 * n - 8);
}

TARGET static inline void store_pairs_bf16(uint16_t *p, vec_bf16 even, vec_bf16 odd,
                                           int n)
{
    const __m512i pairs = _mm512_or_si512(
        _mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));

    put(p, pairs, 4 * n);
}

/* To nearest, ties to even; NaN becomes the quiet NaN that c10 uses. */
TARGET static inline vec_bf16 round_bf16(vec_bf16 v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i cut = _mm512_and_si512(near, _mm512_set1_epi32((int)0xffff0000));

    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(cut, unordered_f32(v, v), _mm512_set1_epi32(0x7fc00000)));
}

TARGET static inline vec_f32 add_where_f32(mask_f32 m, vec_f32 a, vec_f32 b)
{
    return _mm512_mask_add_ps(a, m, a, b);
}

TARGET static inline vec_f64 add_where_f64(mask_f64 m, vec_f64 a, vec_f64 b)
{
    return _mm512_mask_add_pd(a, m, a, b);
}

TARGET static inline vec_bf16 add_where_bf16(mask_bf16 m, vec_bf16 a, vec_bf16 b)
{
    return _mm512_mask_mov_ps(a, m, round_bf16(_mm512_add_ps(a, b)));
}

#define set_f32                            _mm512_set1_ps
#define set_f64                            _mm512_set1_pd
#define load_real_f32                      _mm512_loadu_ps
#define load_real_f64                      _mm512_loadu_pd
#define store_real_f32                     _mm512_storeu_ps
#define store_real_f64                     _mm512_storeu_pd
#define add_f32                            _mm512_add_ps
#define add_f64                            _mm512_add_pd
#define mul_f32                            _mm512_mul_ps
#define mul_f64                            _mm512_mul_pd
#define store_real_pairs_f32(p, even, odd) store_pairs_f32(p, even, odd, lanes_f32)
#define store_real_pairs_f64(p, even, odd) store_pairs_f64(p, even, odd, lanes_f64)
#define div_f32                            _mm512_div_ps
#define div_f64                            _mm512_div_pd
#define round_f32(v)                       (v)
#define round_f64(v)                       (v)
#define keep_f32                           _mm512_maskz_mov_ps
#define keep_f64                           _mm512_maskz_mov_pd
#define pick_f32                           _mm512_mask_blend_ps
#define pick_f64                           _mm512_mask_blend_pd

/* Positions. */

TARGET static inline ivec_f32 iramp_f32(int32_t step)
{
    return _mm512_mullo_epi32(
        _mm512_set1_epi32(step),
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

TARGET static inline ivec_f64 iramp_f64(int32_t step)
{
    return _mm256_mullo_epi32(_mm256_set1_epi32(step),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

/* Eight int64 as int32, saturated: no position in an image is as large as INT32_MAX. */
TARGET static inline __m256i load_8(const int64_t *p, __mmask8 mask)
{
    const __m512i none = _mm512_set1_epi64(-1);

    return _mm256_max_epi32(
        _mm512_cvtsepi64_epi32(_mm512_mask_loadu_epi64(none, mask, p)),
        _mm256_set1_epi32(-1));
}

TARGET static inline ivec_f64 load_index_f64(const int64_t *p, int n)
{
    return load_8(p, range_f64(0, n));
}

TARGET static inline ivec_f32 load_index_f32(const int64_t *p, int n)
{
    const __mmask16 mask = range_f32(0, n);

    return _mm512_inserti64x4(_mm512_castsi256_si512(load_8(p, (__mmask8)mask)),
                              load_8(p + 8, (__mmask8)(mask >> 8)), 1);
}

TARGET static inline mask_f64 index_is_f64(const int64_t *p, int n, int64_t i)
{
    const __mmask8 mask = range_f64(0, n);

    if (n == lanes_f64)
        return _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(p), _mm512_set1_epi64(i));
    return _mm512_mask_cmpeq_epi64_mask(mask, _mm512_maskz_loadu_epi64(mask, p),
                                        _mm512_set1_epi64(i));
}

TARGET static inline mask_f32 index_is_f32(const int64_t *p, int n, int64_t i)
{
    if (n <= 8)
        return index_is_f64(p, n, i);
    return _mm512_kunpackb(index_is_f64(p + 8, n - 8, i), index_is_f64(p, 8, i));
}

TARGET static inline void store_index_f64(int64_t *p, ivec_f64 v, int n)
{
    put(p, _mm512_cvtepi32_epi64(v), 8 * n);
}

TARGET static inline void store_index_f32(int64_t *p, ivec_f32 v, int n)
{
    store_index_f64(p, _mm512_castsi512_si256(v), n);
    if (n > 8)
        store_index_f64(p + 8, _mm512_extracti64x4_epi64(v, 1), n - 8);
}

TARGET static inline ivec_f32 tally_f32(ivec_f32 i, mask_f32 m)
{
    return _mm512_mask_sub_epi32(i, m, i, _mm512_set1_epi32(-1));
}

TARGET static inline ivec_f64 tally_f64(ivec_f64 i, mask_f64 m)
{
    return _mm256_mask_sub_epi32(i, m, i, _mm256_set1_epi32(-1));
}

TARGET static inline int isum_f64(ivec_f64 i)
{
    return _mm512_reduce_add_epi32(_mm512_zextsi256_si512(i));
}

#define isum_f32         _mm512_reduce_add_epi32
#define iset_f32         _mm512_set1_epi32
#define iset_f64         _mm256_set1_epi32
#define iadd_f32         _mm512_add_epi32
#define iadd_f64         _mm256_add_epi32
#define ipick_f32        _mm512_mask_blend_epi32
#define ipick_f64        _mm256_mask_blend_epi32
#define iload_f32        _mm512_loadu_si512
#define iload_f64(p)     _mm256_loadu_si256((const __m256i *)(p))
#define istore_f32       _mm512_storeu_si512
#define istore_f64(p, v) _mm256_storeu_si256((__m256i *)(p), v)

#define is_none_f64 is_none_f32
#define count_f64   count_f32
#define span_of_f64 span_of_f32

#define span_of_bf16 span_of_f32

#include "ops/pool/lanes_bf16.h"

#endif
