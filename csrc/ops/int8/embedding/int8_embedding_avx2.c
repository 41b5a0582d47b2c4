/*
 * int8_embedding_avx2.c - int8_embedding, eight numbers at a time.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define FLOATS(q)                                                                      \
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(q))))
#include "ops/int8/embedding/int8_embedding_tpl.h"

PTAC_ROW(INT8_EMBEDDING, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_int8_embedding_accepts,
         run)
#endif
