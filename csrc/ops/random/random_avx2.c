/*
 * random_avx2.c - numbers of torch's generators, eight words at a time.
 *
 * The algorithms are in random_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include <string.h>

#define ISA                 "avx2"
#define NEEDS               PTAC_CPU_AVX2
#define i_load(p)           _mm256_loadu_si256((const __m256i *)(p))
#define i_store(p, v)       _mm256_storeu_si256((__m256i *)(p), v)
#define i_xor_some(v, m, b) ((v) ^ ((b) & (m)))
#define i_xor_odd(v, o, w)                                                             \
    ((v) ^ (_mm256_srai_epi32(_mm256_slli_epi32(o, 31), 31) & (w)))
#define i_pick(m, a, b) (((m) & (a)) | _mm256_andnot_si256(m, b))
#define k_less(a, b)    ((mask)_mm256_cmpgt_epi32(b, a))
#define k_equal(a, b)   ((mask)_mm256_cmpeq_epi32(a, b))
#define k_bits(k)       ((uint32_t)_mm256_movemask_ps(k))

INLINE ints i_evens(ints a, ints b)
{
    const ints of_halves = (ints)_mm256_shuffle_ps((vec)a, (vec)b, 0x88);

    return _mm256_permute4x64_epi64(of_halves, 0xd8);
}

INLINE mask k_from(uint32_t bits)
{
    const ints each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

    return (mask)_mm256_cmpeq_epi32(_mm256_set1_epi32((int)bits) & each, each);
}

INLINE void k_put(unsigned char *to, mask k, int n)
{
    /* Lanes of all ones to bytes of all ones, and of these to ones. */
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128((ints)k),
                                           _mm256_extracti128_si256((ints)k, 1));
    const __m128i bytes = _mm_abs_epi8(_mm_packs_epi16(halves, halves));
    const uint64_t word = (uint64_t)_mm_cvtsi128_si64(bytes);

    memcpy(to, &word, n == LANES ? sizeof word : (size_t)n);
}

INLINE mask k_take(const unsigned char *from, int n)
{
    uint64_t word = 0;

    memcpy(&word, from, n == LANES ? sizeof word : (size_t)n);
    return (mask)_mm256_cmpgt_epi32(
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)word)), _mm256_setzero_si256());
}

#include "ops/random/random_tpl.h"
#endif
