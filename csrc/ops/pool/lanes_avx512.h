/*
 * lanes_avx512.h - loads and stores of fewer than all lanes, and of every second
 * element, for the pooling rows.
 *
 * A masked load does not touch the memory behind its last lane.
 */
#ifndef PTAC_OPS_POOL_LANES_AVX512_H
#define PTAC_OPS_POOL_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

TARGET static inline __mmask16 first_16(int n)
{
    return (__mmask16)((1u << n) - 1);
}

TARGET static inline __mmask8 first_8(int n)
{
    return (__mmask8)((1u << n) - 1);
}

TARGET static inline __mmask16 range_16(int lo, int hi)
{
    return (__mmask16)((1u << hi) - (1u << lo));
}

TARGET static inline __mmask8 range_8(int lo, int hi)
{
    return (__mmask8)((1u << hi) - (1u << lo));
}

/* The elements in memory that lanes [lo, hi) span, a bit each. */
static inline uint32_t span_of(int64_t stride, int lo, int hi)
{
    if (hi <= lo)
        return 0;
    if (stride == 1)
        return (1u << hi) - (1u << lo);
    return (uint32_t)((UINT64_C(1) << (2 * hi - 1)) - (UINT64_C(1) << 2 * lo));
}

TARGET static inline __m512i evens_32(void)
{
    return _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
}

TARGET static inline __m512i evens_64(void)
{
    return _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
}

TARGET static inline __m512 load_f32(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_16(n), p);
}

TARGET static inline __m512 load_span_f32(const float *p, uint32_t span)
{
    return _mm512_maskz_loadu_ps((__mmask16)span, p);
}

TARGET static inline __m512 load2_span_f32(const float *p, uint32_t span)
{
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)span, p);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(span >> 16), p + 16);

    return _mm512_permutex2var_ps(low, evens_32(), high);
}

TARGET static inline void load_pairs_f32(const float *p, int n, __m512 *even,
                                         __m512 *odd)
{
    const uint32_t mask = (uint32_t)((UINT64_C(1) << 2 * n) - 1);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, p);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), p + 16);
    const __m512i odds = _mm512_add_epi32(evens_32(), _mm512_set1_epi32(1));

    *even = _mm512_permutex2var_ps(low, evens_32(), high);
    *odd = _mm512_permutex2var_ps(low, odds, high);
}

TARGET static inline void store_f32(float *p, __m512 v, int n)
{
    _mm512_mask_storeu_ps(p, first_16(n), v);
}

TARGET static inline __m512d load_f64(const double *p, int n)
{
    return _mm512_maskz_loadu_pd(first_8(n), p);
}

TARGET static inline __m512d load_span_f64(const double *p, uint32_t span)
{
    return _mm512_maskz_loadu_pd((__mmask8)span, p);
}

TARGET static inline __m512d load2_span_f64(const double *p, uint32_t span)
{
    const __m512d low = _mm512_maskz_loadu_pd((__mmask8)span, p);
    const __m512d high = _mm512_maskz_loadu_pd((__mmask8)(span >> 8), p + 8);

    return _mm512_permutex2var_pd(low, evens_64(), high);
}

TARGET static inline void load_pairs_f64(const double *p, int n, __m512d *even,
                                         __m512d *odd)
{
    const uint32_t mask = (1u << 2 * n) - 1;
    const __m512d low = _mm512_maskz_loadu_pd((__mmask8)mask, p);
    const __m512d high = _mm512_maskz_loadu_pd((__mmask8)(mask >> 8), p + 8);
    const __m512i odds = _mm512_add_epi64(evens_64(), _mm512_set1_epi64(1));

    *even = _mm512_permutex2var_pd(low, evens_64(), high);
    *odd = _mm512_permutex2var_pd(low, odds, high);
}

TARGET static inline void store_f64(double *p, __m512d v, int n)
{
    _mm512_mask_storeu_pd(p, first_8(n), v);
}

TARGET static inline __m512 load_span_bf16(const uint16_t *p, uint32_t span)
{
    const __m256i halves = _mm256_maskz_loadu_epi16((__mmask16)span, p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

TARGET static inline __m512 load_bf16(const uint16_t *p, int n)
{
    return load_span_bf16(p, first_16(n));
}

/* The even halves are the low ones of each 32-bit lane, the odd ones the high. */
TARGET static inline __m512 load2_span_bf16(const uint16_t *p, uint32_t span)
{
    const __m512i pairs = _mm512_maskz_loadu_epi16(span, p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

TARGET static inline void load_pairs_bf16(const uint16_t *p, int n, __m512 *even,
                                          __m512 *odd)
{
    const __mmask32 mask = (__mmask32)((UINT64_C(1) << 2 * n) - 1);
    const __m512i pairs = _mm512_maskz_loadu_epi16(mask, p);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);

    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
}

/* Every lane of v came from a bfloat16, so cutting it is exact. */
TARGET static inline void store_bf16(uint16_t *p, __m512 v, int n)
{
    const __m256i halves =
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16));

    _mm256_mask_storeu_epi16(p, first_16(n), halves);
}

TARGET static inline void store_index_16(int64_t *p, __m512i v, int n)
{
    const __mmask16 mask = first_16(n);

    _mm512_mask_storeu_epi64(p, (__mmask8)mask,
                             _mm512_cvtepi32_epi64(_mm512_castsi512_si256(v)));
    _mm512_mask_storeu_epi64(p + 8, (__mmask8)(mask >> 8),
                             _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(v, 1)));
}

TARGET static inline void store_index_8(int64_t *p, __m256i v, int n)
{
    _mm512_mask_storeu_epi64(p, first_8(n), _mm512_cvtepi32_epi64(v));
}

TARGET static inline __m512i ramp_16(int32_t step)
{
    return _mm512_mullo_epi32(
        _mm512_set1_epi32(step),
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

TARGET static inline __m256i ramp_8(int32_t step)
{
    return _mm256_mullo_epi32(_mm256_set1_epi32(step),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

#define GREATER_F32(a, b)   _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define UNORDERED_F32(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define GREATER_F64(a, b)   _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ)
#define UNORDERED_F64(a, b) _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
#define OR(a, b)            ((a) | (b))
#define AND(a, b)           ((a) & (b))
#define IS_NONE(m)          ((m) == 0)

#endif
