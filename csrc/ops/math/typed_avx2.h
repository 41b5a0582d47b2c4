/*
 * typed_avx2.h - the words of typed_lanes.h for AVX2: eight floats or four doubles.
 *
 * Masks are vectors. Fewer than all lanes of floats and doubles go through masked
 * loads and stores. AVX2 has none for bfloat16: its elements go in pairs, and an odd
 * one goes by itself.
 */
#ifndef PTAC_OPS_MATH_TYPED_AVX2_H
#define PTAC_OPS_MATH_TYPED_AVX2_H

#include "ops/math/lanes_avx2.h"
#include "ops/math/typed_lanes.h"

typedef __m256 vec_f32, mask_f32;
typedef __m256d mask_f64;
typedef __m256i ivec_f32;
typedef __m128i ivec_f64;

/* The elements to load from two vectors in memory. */
typedef struct lane_span {
    __m256i low, high;
} lane_span;

typedef lane_span span_f32, span_f64;

typedef struct span_bf16 {
    int lo, hi; /* lanes */
} span_bf16;

enum {
    lanes_f32 = 8,
    lanes_f64 = 4,
};

#define index_vector_f32 _mm256_
#define index_vector_f64 _mm_
#define index_bits_f32   si256
#define index_bits_f64   si128
#define lane_numbers_f32 _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)
#define lane_numbers_f64 _mm_set_epi32(3, 2, 1, 0)

#define COMPARE       V(cmp)
#define IEQUAL        AS_REAL(iequal)
#define ILESS         AS_REAL(iless)
#define OR            V(or)
#define AND           V(and)
#define IS_NONE(m)    (V(movemask)(m) == 0)
#define COUNT(m)      __builtin_popcount((unsigned)V(movemask)(m))
#define KEEP          V(and)
#define PICK(m, a, b) V(blendv)(a, b, m)
#define IPICK         AS_REAL(ipick)

INLINE __m256i lane_bits_f32(int lo, int hi)
{
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);

    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
}

INLINE __m256i lane_bits_f64(int lo, int hi)
{
    const __m256i lane = _mm256_set_epi64x(3, 2, 1, 0);

    return _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_set1_epi64x(lo), lane),
                               _mm256_cmpgt_epi64(_mm256_set1_epi64x(hi), lane));
}

#define range_f32(lo, hi)   ((mask_f32)lane_bits_f32(lo, hi))
#define range_f64(lo, hi)   ((mask_f64)lane_bits_f64(lo, hi))
#define first_f32(n)        lane_bits_f32(0, n)
#define first_f64(n)        lane_bits_f64(0, n)
#define LOW(span)           (span).low
#define HIGH(span)          (span).high
#define LOAD_SOME           V(maskload)
#define STORE_SOME(p, v, n) V(maskstore)(p, OF(first)(n), v)

/* Of [lo, hi) the lanes that come from the first vector, and from the second. */
#define DEFINE_SPAN_OF(type)                                                           \
    INLINE lane_span span_of_##type(int64_t stride, int lo, int hi)                    \
    {                                                                                  \
        if (stride == 1 || hi <= lo)                                                   \
            return (lane_span){lane_bits_##type(lo, hi), _mm256_setzero_si256()};      \
        lo *= 2;                                                                       \
        hi = 2 * hi - 1;                                                               \
        return (lane_span){lane_bits_##type(lo, hi),                                   \
                           lane_bits_##type(lo - lanes_##type, hi - lanes_##type)};    \
    }
DEFINE_SPAN_OF(f32)
DEFINE_SPAN_OF(f64)

/* Orders what shuffles of 128-bit halves leave as lanes 0, 2, 1, 3 of 64 bits. */
#define in_order(v)        _mm256_permute4x64_pd((__m256d)(v), 0xd8)
#define evens_f32(a, b)    ((__m256)in_order(_mm256_shuffle_ps(a, b, 0x88)))
#define odds_f32(a, b)     ((__m256)in_order(_mm256_shuffle_ps(a, b, 0xdd)))
#define evens_f64(a, b)    in_order(_mm256_unpacklo_pd(a, b))
#define odds_f64(a, b)     in_order(_mm256_unpackhi_pd(a, b))
#define ZIP(a, b, halves)  V(permute2f128)(V(unpacklo)(a, b), V(unpackhi)(a, b), halves)
#define zip_low_f32(a, b)  ZIP(a, b, 0x20)
#define zip_high_f32(a, b) ZIP(a, b, 0x31)
#define zip_low_f64        zip_low_f32
#define zip_high_f64       zip_high_f32

#define OF(name) name##_f32
#include "ops/math/typed_tpl.h"
#define OF(name) name##_f64
#include "ops/math/typed_tpl.h"

/* bfloat16 */

#define OF(name) name##_bf16

INLINE span_bf16 span_of_bf16(int64_t stride, int lo, int hi)
{
    (void)stride;
    return (span_bf16){lo, hi};
}

INLINE __m128i load_first_halves(const uint16_t *p, int n)
{
    const __m128i pair = _mm_set_epi32(3, 2, 1, 0);
    const __m128i half = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0);
    __m128i v;

    if (n == lanes_f32)
        return _mm_loadu_si128((const __m128i *)p);
    v = _mm_maskload_epi32((const void *)p,
                           _mm_cmpgt_epi32(_mm_set1_epi32(n / 2), pair));
    if (n % 2)
        v = _mm_or_si128(
            v, _mm_and_si128(_mm_cmpeq_epi16(_mm_set1_epi16((short)(n - 1)), half),
                             _mm_set1_epi16((short)p[n - 1])));
    return v;
}

#define load_bf16(p, n) v_widen(load_first_halves(p, n))

/* Loaded from lane lo on, then moved up to where they belong; bytes below are 0. */
INLINE vec_f32 load_span_bf16(const uint16_t *p, span_bf16 span)
{
    const __m128i byte =
        _mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m128i v;

    if (span.hi <= span.lo)
        return _mm256_setzero_ps();
    v = load_first_halves(p + span.lo, span.hi - span.lo);
    if (span.lo > 0)
        v = _mm_shuffle_epi8(v, _mm_sub_epi8(byte, _mm_set1_epi8((char)(2 * span.lo))));
    return v_widen(v);
}

/* The last lane's element has no partner that might be read. */
INLINE vec_f32 load2_span_bf16(const uint16_t *p, span_bf16 span)
{
    const int last = span.hi - 1;
    __m256i pairs;

    if (span.hi <= span.lo)
        return _mm256_setzero_ps();
    pairs = _mm256_maskload_epi32((const void *)p, lane_bits_f32(span.lo, last));
    pairs = _mm256_or_si256(pairs, _mm256_and_si256(lane_bits_f32(last, span.hi),
                                                    _mm256_set1_epi32(p[2 * last])));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

INLINE __m256i load_halves(const uint16_t *p, int n)
{
    return n == lanes_f32 ? _mm256_loadu_si256((const __m256i *)p)
                          : _mm256_maskload_epi32((const void *)p, lane_bits_f32(0, n));
}

INLINE void store_halves(uint16_t *p, __m256i pairs, int n)
{
    if (n == lanes_f32)
        _mm256_storeu_si256((__m256i *)p, pairs);
    else
        _mm256_maskstore_epi32((void *)p, lane_bits_f32(0, n), pairs);
}

INLINE void store_bf16(uint16_t *p, vec_f32 v, int n)
{
    const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(v), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves),
                                            _mm256_extracti128_si256(halves, 1));
    uint16_t lanes[lanes_f32];

    if (n == lanes_f32) {
        _mm_storeu_si128((__m128i *)p, packed);
        return;
    }
    _mm_storeu_si128((__m128i *)lanes, packed);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
}

#include "ops/math/typed_bf16_tpl.h"

/* Positions */

/* The even 32-bit lanes of two vectors, in order. */
#define low_words(a, b) ((__m256i)evens_f32((__m256)(a), (__m256)(b)))

INLINE int isum_f64(ivec_f64 i)
{
    i = _mm_add_epi32(i, _mm_shuffle_epi32(i, 0x4e));
    i = _mm_add_epi32(i, _mm_shuffle_epi32(i, 0xb1));
    return _mm_cvtsi128_si32(i);
}

INLINE int isum_f32(ivec_f32 i)
{
    return isum_f64(
        _mm_add_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}

/* -1 behind the first n. */
INLINE __m256i load_4(const int64_t *p, int n)
{
    const __m256i mask = lane_bits_f64(0, n);

    if (n >= 4)
        return _mm256_loadu_si256((const __m256i *)p);
    return _mm256_blendv_epi8(_mm256_set1_epi64x(-1),
                              _mm256_maskload_epi64((const void *)p, mask), mask);
}

INLINE void store_4(int64_t *p, __m128i v, int n)
{
    const __m256i wide = _mm256_cvtepi32_epi64(v);

    if (n >= 4)
        _mm256_storeu_si256((__m256i *)p, wide);
    else
        _mm256_maskstore_epi64((void *)p, lane_bits_f64(0, n), wide);
}

/* Low words of int64 whose high words are 0; -1 for others and for negative ones. */
INLINE __m256i positions(__m256i low, __m256i high)
{
    const __m256i fits = _mm256_cmpeq_epi32(high, _mm256_setzero_si256());

    return _mm256_max_epi32(_mm256_blendv_epi8(_mm256_set1_epi32(-1), low, fits),
                            _mm256_set1_epi32(-1));
}

INLINE ivec_f32 load_index_f32(const int64_t *p, int n)
{
    const __m256i a = load_4(p, n), b = load_4(p + 4, n - 4);
    const __m256i high = low_words(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));

    return positions(low_words(a, b), high);
}

INLINE ivec_f64 load_index_f64(const int64_t *p, int n)
{
    const __m256i a = load_4(p, n), high = _mm256_srli_epi64(a, 32);

    return _mm256_castsi256_si128(positions(low_words(a, a), low_words(high, high)));
}

INLINE mask_f64 index_is_f64(const int64_t *p, int n, int64_t i)
{
    return (mask_f64)_mm256_cmpeq_epi64(load_4(p, n), _mm256_set1_epi64x(i));
}

INLINE mask_f32 index_is_f32(const int64_t *p, int n, int64_t i)
{
    return evens_f32((__m256)index_is_f64(p, n, i),
                     (__m256)index_is_f64(p + 4, n - 4, i));
}

INLINE void store_index_f32(int64_t *p, ivec_f32 v, int n)
{
    store_4(p, _mm256_castsi256_si128(v), n);
    store_4(p + 4, _mm256_extracti128_si256(v, 1), n - 4);
}

INLINE ivec_f32 iload2_f32(const int32_t *p)
{
    return (ivec_f32)load2_f32((const float *)p);
}

INLINE ivec_f64 iload2_f64(const int32_t *p)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)p);

    return _mm256_castsi256_si128(low_words(pairs, pairs));
}

/* Truth values have as many bits as VEC's elements, positions have 32. */
#define halved(m)          _mm256_castsi256_si128(low_words(m, m))
#define iequal_f32(a, b)   ((mask_f32)_mm256_cmpeq_epi32(a, b))
#define iequal_f64(a, b)   ((mask_f64)_mm256_cvtepi32_epi64(_mm_cmpeq_epi32(a, b)))
#define iless_f32(a, b)    ((mask_f32)_mm256_cmpgt_epi32(b, a))
#define iless_f64(a, b)    ((mask_f64)_mm256_cvtepi32_epi64(_mm_cmplt_epi32(a, b)))
#define ipick_f32(m, a, b) _mm256_blendv_epi8(a, b, (__m256i)(m))
#define ipick_f64(m, a, b) _mm_blendv_epi8(a, b, halved(m))
#define tally_f32(i, m)    _mm256_sub_epi32(i, (__m256i)(m))
#define tally_f64(i, m)    _mm_sub_epi32(i, halved(m))
#define store_index_f64    store_4

#endif
