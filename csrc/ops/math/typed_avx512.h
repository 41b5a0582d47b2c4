/*
 * typed_avx512.h - the words of typed_lanes.h for AVX-512: sixteen floats or eight
 * doubles.
 */
#ifndef PTAC_OPS_MATH_TYPED_AVX512_H
#define PTAC_OPS_MATH_TYPED_AVX512_H

#include "ops/math/lanes_avx512.h"
#include "ops/math/typed_lanes.h"

typedef __m512 vec_f32;
typedef __m512i ivec_f32;
typedef __m256i ivec_f64;
typedef __mmask16 mask_f32;
typedef __mmask8 mask_f64;
typedef uint32_t span_f32, span_bf16, span_f64; /* a bit an element */

enum {
    lanes_f32 = 16,
    lanes_f64 = 8,
};

#define index_vector_f32 _mm512_
#define index_vector_f64 _mm256_
#define index_bits_f32   si512
#define index_bits_f64   si256
#define lane_numbers_f32                                                               \
    _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define lane_numbers_f64 _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)

#define COMPARE    JOIN(_mm512_cmp_, AS_REAL(suffix), mask)
#define IEQUAL     JOIN(AS_REAL(index_vector), cmpeq_epi32, mask)
#define ILESS      JOIN(AS_REAL(index_vector), cmplt_epi32, mask)
#define OR(a, b)   ((MASK)((a) | (b)))
#define AND(a, b)  ((MASK)((a) & (b)))
#define IS_NONE(m) ((m) == 0)
#define COUNT(m)   __builtin_popcount(m)
#define KEEP       V(maskz_mov)
#define PICK       V(mask_blend)
#define IPICK      I(mask_blend)

INLINE uint32_t span_of(int64_t stride, int lo, int hi)
{
    if (hi <= lo)
        return 0;
    if (stride == 1)
        return (1u << hi) - (1u << lo);
    return (uint32_t)((UINT64_C(1) << (2 * hi - 1)) - (UINT64_C(1) << 2 * lo));
}

#define span_of_f32  span_of
#define span_of_bf16 span_of
#define span_of_f64  span_of

#define range_f32(lo, hi)   ((mask_f32)((1u << (hi)) - (1u << (lo))))
#define range_f64(lo, hi)   ((mask_f64)((1u << (hi)) - (1u << (lo))))
#define first_f32(n)        range_f32(0, n)
#define first_f64(n)        range_f64(0, n)
#define LOW(span)           ((MASK)(span))
#define HIGH(span)          ((MASK)((span) >> N_LANES))
#define LOAD_SOME(p, some)  V(maskz_loadu)(some, p)
#define STORE_SOME(p, v, n) store_bytes(p, (__m512i)(v), (int)sizeof(ELEM) * (n))

/* Lanes of two vectors, by their numbers. */

#define number_f32 ((__v16si){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

#define number_f64              ((__v8di){0, 1, 2, 3, 4, 5, 6, 7})
#define LANES_OF(a, b, numbers) V(permutex2var)(a, (__m512i)(numbers), b)
#define EVEN                    (OF(number) * 2)
#define IN_TURN                 (OF(number) / 2 + OF(number) % 2 * N_LANES)
#define evens_f32(a, b)         LANES_OF(a, b, EVEN)
#define odds_f32(a, b)          LANES_OF(a, b, EVEN + 1)
#define zip_low_f32(a, b)       LANES_OF(a, b, IN_TURN)
#define zip_high_f32(a, b)      LANES_OF(a, b, IN_TURN + N_LANES / 2)
#define evens_f64               evens_f32
#define odds_f64                odds_f32
#define zip_low_f64             zip_low_f32
#define zip_high_f64            zip_high_f32

/*
 * The first bytes of v, an even number, in whole pieces: Zen 5 takes ten times as long
 * for a masked store as for a plain one when the line is not in its first cache.
 */
INLINE void store_bytes(void *p, __m512i v, int bytes)
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

#define OF(name) name##_f32
#include "ops/math/typed_tpl.h"
#define OF(name) name##_f64
#include "ops/math/typed_tpl.h"

/* bfloat16 */

#define OF(name) name##_bf16

#define load_span_bf16(p, span) v_widen(_mm256_maskz_loadu_epi16((__mmask16)(span), p))
#define load_bf16(p, n)         load_span_bf16(p, range_f32(0, n))

/* The even halves are the low ones of each 32-bit lane. */
INLINE vec_f32 load2_span_bf16(const uint16_t *p, uint32_t span)
{
    return (vec_f32)_mm512_slli_epi32(_mm512_maskz_loadu_epi16(span, p), 16);
}

INLINE void store_bf16(uint16_t *p, vec_f32 v, int n)
{
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v, 16));

    store_bytes(p, _mm512_castsi256_si512(halves), 2 * n);
}

INLINE __m512i load_halves(const uint16_t *p, int n)
{
    return _mm512_maskz_loadu_epi16((uint32_t)((UINT64_C(1) << 2 * n) - 1), p);
}

INLINE void store_halves(uint16_t *p, __m512i pairs, int n)
{
    store_bytes(p, pairs, 4 * n);
}

#include "ops/math/typed_bf16_tpl.h"

/* Positions */

/* Eight int64 as int32, saturated: no position in an image is as large as INT32_MAX. */
INLINE __m256i load_8(const int64_t *p, __mmask8 mask)
{
    const __m512i none = _mm512_set1_epi64(-1);

    return _mm256_max_epi32(
        _mm512_cvtsepi64_epi32(_mm512_mask_loadu_epi64(none, mask, p)),
        _mm256_set1_epi32(-1));
}

#define load_index_f64(p, n) load_8(p, range_f64(0, n))

INLINE ivec_f32 load_index_f32(const int64_t *p, int n)
{
    const __mmask16 mask = range_f32(0, n);

    return _mm512_inserti64x4(_mm512_castsi256_si512(load_8(p, (__mmask8)mask)),
                              load_8(p + 8, (__mmask8)(mask >> 8)), 1);
}

INLINE mask_f64 index_is_f64(const int64_t *p, int n, int64_t i)
{
    const __mmask8 mask = range_f64(0, n);

    if (n == lanes_f64)
        return _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(p), _mm512_set1_epi64(i));
    return _mm512_mask_cmpeq_epi64_mask(mask, _mm512_maskz_loadu_epi64(mask, p),
                                        _mm512_set1_epi64(i));
}

INLINE mask_f32 index_is_f32(const int64_t *p, int n, int64_t i)
{
    if (n <= 8)
        return index_is_f64(p, n, i);
    return _mm512_kunpackb(index_is_f64(p + 8, n - 8, i), index_is_f64(p, 8, i));
}

INLINE void store_index_f64(int64_t *p, ivec_f64 v, int n)
{
    store_bytes(p, _mm512_cvtepi32_epi64(v), 8 * n);
}

INLINE void store_index_f32(int64_t *p, ivec_f32 v, int n)
{
    store_index_f64(p, _mm512_castsi512_si256(v), n);
    if (n > 8)
        store_index_f64(p + 8, _mm512_extracti64x4_epi64(v, 1), n - 8);
}

INLINE ivec_f32 iload2_f32(const int32_t *p)
{
    return (ivec_f32)load2_f32((const float *)p);
}

INLINE ivec_f64 iload2_f64(const int32_t *p)
{
    return _mm512_cvtepi64_epi32(_mm512_loadu_si512(p));
}

#define tally_f32(i, m) _mm512_mask_sub_epi32(i, m, i, _mm512_set1_epi32(-1))
#define tally_f64(i, m) _mm256_mask_sub_epi32(i, m, i, _mm256_set1_epi32(-1))
#define isum_f32        _mm512_reduce_add_epi32
#define isum_f64(i)     _mm512_reduce_add_epi32(_mm512_zextsi256_si512(i))

#endif
