/*
 * adam_avx512.c - the Adam and AdamW steps, sixteen floats or eight doubles at a time.
 *
 * The algorithm is in adam_tpl.h; this file names the lanes, and says how they take
 * square roots and maxima.
 */
#if defined(__x86_64__)
#include "ops/optim/root.h"
#include "ops/optim/step.h"

#include "ops/optim/avx512_f32_tpl.h"

TARGET static inline __m512 maximum_f32(__m512 a, __m512 b)
{
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

    /* vmaxps gives its second operand when either is NaN. */
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), nan, a);
}

/*
 * The host decides for lanes outside the iteration's range; zero is common, and zero.
 */
TARGET static inline __m512 refined_root(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512 half = _mm512_set1_ps(0.5f);
    const __m512 y = _mm512_insertf32x8(
        _mm512_castps256_ps512(_mm256_rsqrt_ps(_mm512_castps512_ps256(x))),
        _mm256_rsqrt_ps(_mm512_extractf32x8_ps(x, 1)), 1);
    const __mmask16 odd = _mm512_cmpgt_epu32_mask(
        _mm512_sub_epi32(bits, _mm512_set1_epi32(PTAC_ROOT_FIRST)),
        _mm512_set1_epi32(PTAC_ROOT_LAST - PTAC_ROOT_FIRST));
    const __mmask16 nonzero = _mm512_test_epi32_mask(bits, bits);
    __m512 s = _mm512_mul_ps(x, y), h = _mm512_mul_ps(half, y), r;

    if (__builtin_expect(odd & nonzero, 0)) {
        float in[LANES], out[LANES];

        _mm512_storeu_ps(in, x);
        ptac_the_host.sqrt_f32(in, out, LANES);
        return _mm512_loadu_ps(out);
    }
    r = _mm512_sub_ps(half, _mm512_mul_ps(s, h));
    s = _mm512_add_ps(s, _mm512_mul_ps(s, r));
    h = _mm512_add_ps(h, _mm512_mul_ps(h, r));
    r = _mm512_sub_ps(x, _mm512_mul_ps(s, s));
    return _mm512_maskz_add_ps(nonzero, s, _mm512_mul_ps(r, h));
}

TARGET static inline __m512 root_f32(__m512 x)
{
    return ptac_the_host.sqrt_rule == PTAC_SQRT_IEEE ? _mm512_sqrt_ps(x)
                                                     : refined_root(x);
}

#include "ops/optim/adam_tpl.h"

#include "ops/optim/undef_tpl.h"

#include "ops/optim/avx512_f64_tpl.h"

TARGET static inline __m512d maximum_f64(__m512d a, __m512d b)
{
    const __mmask8 nan = _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q);

    return _mm512_mask_mov_pd(_mm512_max_pd(a, b), nan, a);
}

#include "ops/optim/adam_tpl.h"

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, adam_range_f32, adam_range_f64);
}

PTAC_ROW(ADAM_STEP, "avx512", PTAC_EXACT, PTAC_CPU_AVX512, ptac_step_accepts_fused, run)

PTAC_ROW(ADAMW_STEP, "avx512", PTAC_EXACT, PTAC_CPU_AVX512, ptac_step_accepts_fused,
         run)
#endif
