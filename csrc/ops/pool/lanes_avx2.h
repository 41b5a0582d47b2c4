/*
 * lanes_avx2.h - the words of lanes.h for AVX2, eight floats or four doubles.
 *
 * Masks are vectors. Fewer than all lanes of floats and doubles go through masked
 * loads and stores; AVX2 has none for bfloat16, whose elements go in pairs and the odd
 * one by itself.
 */
#ifndef PTAC_OPS_POOL_LANES_AVX2_H
#define PTAC_OPS_POOL_LANES_AVX2_H

#include "ops/pool/lanes.h"

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx2,fma,popcnt")))

typedef __m256 vec_f32, vec_bf16, mask_f32, mask_bf16;
typedef __m256d vec_f64, mask_f64;
typedef __m256i ivec_f32, ivec_bf16;
typedef __m128i ivec_f64;

typedef struct span_f32 {
    __m256i low, high;
} span_f32;

typedef span_f32 span_f64;

typedef struct span_bf16 {
    int lo, hi; /* lanes */
} span_bf16;

enum {
    lanes_f32 = 8,
    lanes_bf16 = 8,
    lanes_f64 = 4,
};

/* Masks. */

TARGET static inline __m256i lanes_8(int lo, int hi)
{
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);

    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
}

TARGET static inline __m256i lanes_4(int lo, int hi)
{
    const __m256i lane = _mm256_set_epi64x(3, 2, 1, 0);

    return _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_set1_epi64x(lo), lane),
                               _mm256_cmpgt_epi64(_mm256_set1_epi64x(hi), lane));
}

TARGET static inline mask_f32 range_f32(int lo, int hi)
{
    return _mm256_castsi256_ps(lanes_8(lo, hi));
}

TARGET static inline mask_f64 range_f64(int lo, int hi)
{
    return _mm256_castsi256_pd(lanes_4(lo, hi));
}

TARGET static inline span_f32 span_of_f32(int64_t stride, int lo, int hi)
{
    if (stride == 1 || hi <= lo)
        return (span_f32){lanes_8(lo, hi), _mm256_setzero_si256()};
    return (span_f32){lanes_8(2 * lo, 2 * hi - 1), lanes_8(2 * lo - 8, 2 * hi - 9)};
}

TARGET static inline span_f64 span_of_f64(int64_t stride, int lo, int hi)
{
    if (stride == 1 || hi <= lo)
        return (span_f64){lanes_4(lo, hi), _mm256_setzero_si256()};
    return (span_f64){lanes_4(2 * lo, 2 * hi - 1), lanes_4(2 * lo - 4, 2 * hi - 5)};
}

static inline span_bf16 span_of_bf16(int64_t stride, int lo, int hi)
{
    (void)stride;
    return (span_bf16){lo, hi};
}

TARGET static inline int count_f32(mask_f32 m)
{
    return __builtin_popcount((unsigned)_mm256_movemask_ps(m));
}

TARGET static inline int count_f64(mask_f64 m)
{
    return __builtin_popcount((unsigned)_mm256_movemask_pd(m));
}

/* Four 32-bit truth values as four of 64 bits. */
TARGET static inline mask_f64 iequal_f64(ivec_f64 a, ivec_f64 b)
{
    return _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_cmpeq_epi32(a, b)));
}

#define iequal_f32(a, b)    _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))
#define either_f32          _mm256_or_ps
#define either_f64          _mm256_or_pd
#define both_f32            _mm256_and_ps
#define both_f64            _mm256_and_pd
#define is_none_f32(m)      (_mm256_movemask_ps(m) == 0)
#define is_none_f64(m)      (_mm256_movemask_pd(m) == 0)
#define greater_f32(a, b)   _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define greater_f64(a, b)   _mm256_cmp_pd(a, b, _CMP_GT_OQ)
#define unordered_f32(a, b) _mm256_cmp_ps(a, b, _CMP_UNORD_Q)
#define unordered_f64(a, b) _mm256_cmp_pd(a, b, _CMP_UNORD_Q)

/* Values. */

TARGET static inline vec_f32 load_f32(const float *p, int n)
{
    return n == lanes_f32 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes_8(0, n));
}

TARGET static inline vec_f64 load_f64(const double *p, int n)
{
    return n == lanes_f64 ? _mm256_loadu_pd(p) : _mm256_maskload_pd(p, lanes_4(0, n));
}

TARGET static inline vec_bf16 widen(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

TARGET static inline __m128i load_halves(const uint16_t *p, int n)
{
    const __m128i pair = _mm_set_epi32(3, 2, 1, 0);
    const __m128i half = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0);
    __m128i v;

    if (n == lanes_bf16)
        return _mm_loadu_si128((const __m128i *)p);
    v = _mm_maskload_epi32((const void *)p,
                           _mm_cmpgt_epi32(_mm_set1_epi32(n / 2), pair));
    if (n % 2)
        v = _mm_or_si128(
            v, _mm_and_si128(_mm_cmpeq_epi16(_mm_set1_epi16((short)(n - 1)), half),
                             _mm_set1_epi16((short)p[n - 1])));
    return v;
}

TARGET static inline vec_bf16 load_bf16(const uint16_t *p, int n)
{
    return widen(load_halves(p, n));
}

TARGET static inline vec_f32 load_span_f32(const float *p, span_f32 span)
{
    return _mm256_maskload_ps(p, span.low);
}

TARGET static inline vec_f64 load_span_f64(const double *p, span_f64 span)
{
    return _mm256_maskload_pd(p, span.low);
}

/* Loaded from lane lo on, then moved up to where they belong; bytes below are 0. */
TARGET static inline vec_bf16 load_span_bf16(const uint16_t *p, span_bf16 span)
{
    const __m128i byte =
        _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m128i v;

    if (span.hi <= span.lo)
        return _mm256_setzero_ps();
    v = load_halves(p + span.lo, span.hi - span.lo);
    if (span.lo > 0)
        v = _mm_shuffle_epi8(v, _mm_sub_epi8(byte, _mm_set1_epi8((char)(2 * span.lo))));
    return widen(v);
}

/* Lanes 0, 2, 1, 3 of 64 bits: what the shuffles of 128-bit halves leave behind. */
TARGET static inline vec_f32 in_order_f32(__m256 v)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}

TARGET static inline vec_f32 load2_span_f32(const float *p, span_f32 span)
{
    const __m256 low = _mm256_maskload_ps(p, span.low);
    const __m256 high = _mm256_maskload_ps(p + 8, span.high);

    return in_order_f32(_mm256_shuffle_ps(low, high, 0x88));
}

TARGET static inline vec_f64 load2_span_f64(const double *p, span_f64 span)
{
    const __m256d low = _mm256_maskload_pd(p, span.low);
    const __m256d high = _mm256_maskload_pd(p + 4, span.high);

    return _mm256_permute4x64_pd(_mm256_unpacklo_pd(low, high), 0xd8);
}

/* The last lane's element has no partner that might be read. */
TARGET static inline vec_bf16 load2_span_bf16(const uint16_t *p, span_bf16 span)
{
    const int last = span.hi - 1;
    __m256i pairs;

    if (span.hi <= span.lo)
        return _mm256_setzero_ps();
    pairs = _mm256_maskload_epi32((const void *)p, lanes_8(span.lo, last));
    pairs = _mm256_or_si256(pairs, _mm256_and_si256(lanes_8(last, span.hi),
                                                    _mm256_set1_epi32(p[2 * last])));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

TARGET static inline void load_pairs_f32(const float *p, int n, vec_f32 *even,
                                         vec_f32 *odd)
{
    const __m256 low = load_f32(p, n >= 4 ? 8 : 2 * n);
    const __m256 high = n > 4 ? load_f32(p + 8, 2 * n - 8) : _mm256_setzero_ps();

    *even = in_order_f32(_mm256_shuffle_ps(low, high, 0x88));
    *odd = in_order_f32(_mm256_shuffle_ps(low, high, 0xdd));
}

TARGET static inline void load_pairs_f64(const double *p, int n, vec_f64 *even,
                                         vec_f64 *odd)
{
    const __m256d low = load_f64(p, n >= 2 ? 4 : 2 * n);
    const __m256d high = n > 2 ? load_f64(p + 4, 2 * n - 4) : _mm256_setzero_pd();

    *even = _mm256_permute4x64_pd(_mm256_unpacklo_pd(low, high), 0xd8);
    *odd = _mm256_permute4x64_pd(_mm256_unpackhi_pd(low, high), 0xd8);
}

TARGET static inline void load_pairs_bf16(const uint16_t *p, int n, vec_bf16 *even,
                                          vec_bf16 *odd)
{
    const __m256i pairs = n == lanes_bf16
                              ? _mm256_loadu_si256((const __m256i *)p)
                              : _mm256_maskload_epi32((const void *)p, lanes_8(0, n));
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);

    *even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, high));
}

TARGET static inline void store_f32(float *p, vec_f32 v, int n)
{
    if (n == lanes_f32)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, lanes_8(0, n), v);
}

TARGET static inline void store_f64(double *p, vec_f64 v, int n)
{
    if (n == lanes_f64)
        _mm256_storeu_pd(p, v);
    else
        _mm256_maskstore_pd(p, lanes_4(0, n), v);
}

TARGET static inline void store_bf16(uint16_t *p, vec_bf16 v, int n)
{
    const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(v), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves),
                                            _mm256_extracti128_si256(halves, 1));
    uint16_t lanes[lanes_bf16];

    if (n == lanes_bf16) {
        _mm_storeu_si128((__m128i *)p, packed);
        return;
    }
    _mm_storeu_si128((__m128i *)lanes, packed);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}

TARGET static inline void store_pairs_f32(float *p, vec_f32 even, vec_f32 odd, int n)
{
    const __m256 low = _mm256_unpacklo_ps(even, odd);
    const __m256 high = _mm256_unpackhi_ps(even, odd);

    store_f32(p, _mm256_permute2f128_ps(low, high, 0x20), n >= 4 ? 8 : 2 * n);
    if (n > 4)
        store_f32(p + 8, _mm256_permute2f128_ps(low, high, 0x31), 2 * n - 8);
}

TARGET static inline void store_pairs_f64(double *p, vec_f64 even, vec_f64 odd, int n)
{
    const __m256d low = _mm256_unpacklo_pd(even, odd);
    const __m256d high = _mm256_unpackhi_pd(even, odd);

    store_f64(p, _mm256_permute2f128_pd(low, high, 0x20), n >= 2 ? 4 : 2 * n);
    if (n > 2)
        store_f64(p + 4, _mm256_permute2f128_pd(low, high, 0x31), 2 * n - 4);
}

TARGET static inline void store_pairs_bf16(uint16_t *p, vec_bf16 even, vec_bf16 odd,
                                           int n)
{
    const __m256i pairs = _mm256_or_si256(
        _mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd));

    if (n == lanes_bf16)
        _mm256_storeu_si256((__m256i *)p, pairs);
    else
        _mm256_maskstore_epi32((void *)p, lanes_8(0, n), pairs);
}

/* To nearest, ties to even; NaN becomes the quiet NaN that c10 uses. */
TARGET static inline vec_bf16 round_bf16(vec_bf16 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i cut = _mm256_and_si256(near, _mm256_set1_epi32((int)0xffff0000));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));

    return _mm256_blendv_ps(_mm256_castsi256_ps(cut), nan, unordered_f32(v, v));
}

TARGET static inline vec_f32 add_where_f32(mask_f32 m, vec_f32 a, vec_f32 b)
{
    return _mm256_blendv_ps(a, _mm256_add_ps(a, b), m);
}

TARGET static inline vec_f64 add_where_f64(mask_f64 m, vec_f64 a, vec_f64 b)
{
    return _mm256_blendv_pd(a, _mm256_add_pd(a, b), m);
}

TARGET static inline vec_bf16 add_where_bf16(mask_bf16 m, vec_bf16 a, vec_bf16 b)
{
    return _mm256_blendv_ps(a, round_bf16(_mm256_add_ps(a, b)), m);
}

#define set_f32                            _mm256_set1_ps
#define set_f64                            _mm256_set1_pd
#define load_real_f32                      _mm256_loadu_ps
#define load_real_f64                      _mm256_loadu_pd
#define store_real_f32                     _mm256_storeu_ps
#define store_real_f64                     _mm256_storeu_pd
#define add_f32                            _mm256_add_ps
#define add_f64                            _mm256_add_pd
#define mul_f32                            _mm256_mul_ps
#define mul_f64                            _mm256_mul_pd
#define store_real_pairs_f32(p, even, odd) store_pairs_f32(p, even, odd, lanes_f32)
#define store_real_pairs_f64(p, even, odd) store_pairs_f64(p, even, odd, lanes_f64)
#define div_f32                            _mm256_div_ps
#define div_f64                            _mm256_div_pd
#define round_f32(v)                       (v)
#define round_f64(v)                       (v)
#define keep_f32                           _mm256_and_ps
#define keep_f64                           _mm256_and_pd
#define pick_f32(m, a, b)                  _mm256_blendv_ps(a, b, m)
#define pick_f64(m, a, b)                  _mm256_blendv_pd(a, b, m)

/* Positions. */

/* The even 32-bit lanes of two vectors, in order. */
TARGET static inline __m256i low_words(__m256i a, __m256i b)
{
    return _mm256_castps_si256(in_order_f32(
        _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88)));
}

TARGET static inline ivec_f32 ipick_f32(mask_f32 m, ivec_f32 a, ivec_f32 b)
{
    return _mm256_blendv_epi8(a, b, _mm256_castps_si256(m));
}

TARGET static inline __m128i narrow(mask_f64 m)
{
    const __m256i mask = _mm256_castpd_si256(m);

    return _mm256_castsi256_si128(low_words(mask, mask));
}

TARGET static inline ivec_f64 ipick_f64(mask_f64 m, ivec_f64 a, ivec_f64 b)
{
    return _mm_blendv_epi8(a, b, narrow(m));
}

TARGET static inline ivec_f64 tally_f64(ivec_f64 i, mask_f64 m)
{
    return _mm_sub_epi32(i, narrow(m));
}

TARGET static inline int isum_f64(ivec_f64 i)
{
    i = _mm_add_epi32(i, _mm_shuffle_epi32(i, 0x4e));
    i = _mm_add_epi32(i, _mm_shuffle_epi32(i, 0xb1));
    return _mm_cvtsi128_si32(i);
}

TARGET static inline int isum_f32(ivec_f32 i)
{
    return isum_f64(
        _mm_add_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}

TARGET static inline ivec_f32 iramp_f32(int32_t step)
{
    return _mm256_mullo_epi32(_mm256_set1_epi32(step),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

TARGET static inline ivec_f64 iramp_f64(int32_t step)
{
    return _mm_mullo_epi32(_mm_set1_epi32(step), _mm_set_epi32(3, 2, 1, 0));
}

/* -1 behind the first n. */
TARGET static inline __m256i load_4(const int64_t *p, int n)
{
    const __m256i mask = lanes_4(0, n);

    if (n >= 4)
        return _mm256_loadu_si256((const __m256i *)p);
    return _mm256_blendv_epi8(_mm256_set1_epi64x(-1),
                              _mm256_maskload_epi64((const void *)p, mask), mask);
}

TARGET static inline void store_4(int64_t *p, __m128i v, int n)
{
    const __m256i wide = _mm256_cvtepi32_epi64(v);

    if (n >= 4)
        _mm256_storeu_si256((__m256i *)p, wide);
    else
        _mm256_maskstore_epi64((void *)p, lanes_4(0, n), wide);
}

/* Low words of int64 whose high words are 0; -1 for others and for negative ones. */
TARGET static inline __m256i positions(__m256i low, __m256i high)
{
    const __m256i fits = _mm256_cmpeq_epi32(high, _mm256_setzero_si256());

    return _mm256_max_epi32(_mm256_blendv_epi8(_mm256_set1_epi32(-1), low, fits),
                            _mm256_set1_epi32(-1));
}

TARGET static inline ivec_f32 load_index_f32(const int64_t *p, int n)
{
    const __m256i a = load_4(p, n), b = load_4(p + 4, n - 4);
    const __m256i high = low_words(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));

    return positions(low_words(a, b), high);
}

TARGET static inline ivec_f64 load_index_f64(const int64_t *p, int n)
{
    const __m256i a = load_4(p, n), high = _mm256_srli_epi64(a, 32);

    return _mm256_castsi256_si128(positions(low_words(a, a), low_words(high, high)));
}

TARGET static inline mask_f64 index_is_f64(const int64_t *p, int n, int64_t i)
{
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(load_4(p, n), _mm256_set1_epi64x(i)));
}

TARGET static inline mask_f32 index_is_f32(const int64_t *p, int n, int64_t i)
{
    return _mm256_castsi256_ps(
        low_words(_mm256_castpd_si256(index_is_f64(p, n, i)),
                  _mm256_castpd_si256(index_is_f64(p + 4, n - 4, i))));
}

TARGET static inline void store_index_f32(int64_t *p, ivec_f32 v, int n)
{
    store_4(p, _mm256_castsi256_si128(v), n);
    store_4(p + 4, _mm256_extracti128_si256(v, 1), n - 4);
}

#define store_index_f64  store_4
#define tally_f32(i, m)  _mm256_sub_epi32(i, _mm256_castps_si256(m))
#define iset_f32         _mm256_set1_epi32
#define iset_f64         _mm_set1_epi32
#define iadd_f32         _mm256_add_epi32
#define iadd_f64         _mm_add_epi32
#define iload_f32(p)     _mm256_loadu_si256((const __m256i *)(p))
#define iload_f64(p)     _mm_loadu_si128((const __m128i *)(p))
#define istore_f32(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define istore_f64(p, v) _mm_storeu_si128((__m128i *)(p), v)

#include "ops/pool/lanes_bf16.h"

#endif
