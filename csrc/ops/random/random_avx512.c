/*
 * random_avx512.c - numbers of torch's generators, sixteen words at a time.
 *
 * The algorithms are in random_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

/* Of three operands, which come as bits of 0xf0, 0xcc and 0xaa. */
enum {
    XOR_SOME = 0xf0 ^ (0xcc & 0xaa),
    PICK = (0xf0 & 0xcc) | (0x0f & 0xaa),
};

#define ISA                 "avx512"
#define NEEDS               PTAC_CPU_AVX512
#define i_load(p)           _mm512_loadu_si512(p)
#define i_store(p, v)       _mm512_storeu_si512(p, v)
#define i_xor_some(v, m, b) _mm512_ternarylogic_epi32(v, m, b, XOR_SOME)
#define i_xor_odd(v, o, w)                                                             \
    _mm512_mask_xor_epi32(v, _mm512_test_epi32_mask(o, _mm512_set1_epi32(1)), v, w)
#define i_pick(m, a, b) _mm512_ternarylogic_epi32(m, a, b, PICK)
#define k_less          _mm512_cmplt_epi32_mask
#define k_equal         _mm512_cmpeq_epi32_mask
#define k_bits(k)       ((uint32_t)(k))
#define k_from(bits)    ((mask)(bits))

INLINE ints i_evens(ints a, ints b)
{
    const ints places =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

    return _mm512_permutex2var_epi32(a, places, b);
}

INLINE void k_put(unsigned char *to, mask k, int n)
{
    _mm_mask_storeu_epi8(to, v_first(n), _mm_maskz_set1_epi8(k, 1));
}

INLINE mask k_take(const unsigned char *from, int n)
{
    const __m128i bytes = _mm_maskz_loadu_epi8(v_first(n), from);

    return _mm_test_epi8_mask(bytes, bytes);
}

#include "ops/random/random_tpl.h"
#endif
