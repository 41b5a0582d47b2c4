/*
 * int8_embedding_avx512.c - int8_embedding, sixteen numbers at a time.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

#define FLOATS(q)                                                                      \
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(q))))
#include "ops/int8/embedding/int8_embedding_tpl.h"

PTAC_ROW(INT8_EMBEDDING, "avx512", PTAC_EXACT, PTAC_CPU_AVX512,
         ptac_int8_embedding_accepts, run)
#endif
