/*
 * step_avx512.h - what step_lanes.h expects of AVX-512.
 */
#ifndef PTAC_OPS_OPTIM_STEP_AVX512_H
#define PTAC_OPS_OPTIM_STEP_AVX512_H

#include "ops/math/typed_avx512.h"

#define SUM   __m512d
#define TOTAL _mm512_reduce_add_pd

/* The two halves join before the sum, which then waits for one addition alone. */
INLINE __m512d dot_f32(__m512d sum, __m512 a, __m512 b)
{
    const __m512d high = _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
                                       _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)));
    const __m512d both =
        _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                        _mm512_cvtps_pd(_mm512_castps512_ps256(b)), high);

    return _mm512_add_pd(sum, both);
}

/* AVX-512's own estimate is another one. */
INLINE __m512 root_estimate(__m512 x)
{
    return _mm512_insertf32x8(
        _mm512_castps256_ps512(_mm256_rsqrt_ps(_mm512_castps512_ps256(x))),
        _mm256_rsqrt_ps(_mm512_extractf32x8_ps(x, 1)), 1);
}

#include "ops/optim/step_lanes.h"

#endif
