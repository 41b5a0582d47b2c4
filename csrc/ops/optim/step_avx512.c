/*
 * step_avx512.c - the steps of optimizers, sixteen floats or eight doubles
 * at a time.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

/* Zeros by the mask of the others, for which one instruction looks. */
#define ZEROS(i)          _mm512_test_epi32_mask(i, i)
#define BEYOND(i, limit)  _mm512_cmpge_epu32_mask(i, limit)
#define WITHOUT(zeros, m) AND(zeros, m)
#define CLEAR(zeros, v)   KEEP(zeros, v)

/* A step has just read what it writes: no masked store is slow there. */
#undef STORE
#define STORE(p, v, n)                                                                 \
    ((n) == N_LANES ? STORE_REAL(p, v) : V(mask_storeu)(p, RANGE(0, n), v))

#define root_estimate_14 _mm512_rsqrt14_ps
#define HAS_ESTIMATE_14  true

/* AVX-512's own estimate is another one. */
INLINE __m512 root_estimate(__m512 x)
{
    return _mm512_insertf32x8(
        _mm512_castps256_ps512(_mm256_rsqrt_ps(_mm512_castps512_ps256(x))),
        _mm256_rsqrt_ps(_mm512_extractf32x8_ps(x, 1)), 1);
}

#include "ops/optim/step_tpl.h"

PTAC_STEP_ROWS("avx512", PTAC_CPU_AVX512, ptac_step_accepts_fused)
#endif
