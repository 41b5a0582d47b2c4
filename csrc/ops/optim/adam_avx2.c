/*
 * adam_avx2.c - the Adam and AdamW steps, eight floats or four doubles at a time.
 *
 * The algorithm is in adam_tpl.h; this file names the lanes, and says how they take
 * square roots and maxima.
 */
#if defined(__x86_64__)
#include "ops/optim/root.h"
#include "ops/optim/step.h"

#include "ops/optim/avx2_f32_tpl.h"

TARGET static inline __m256 maximum_f32(__m256 a, __m256 b)
{
    /* vmaxps gives its second operand when either is NaN. */
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

/*
 * The host decides for lanes outside the iteration's range; zero is common, and zero.
 */
TARGET static inline __m256 refined_root(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
    const __m256i first = _mm256_set1_epi32(PTAC_ROOT_FIRST - 1);
    const __m256i last = _mm256_set1_epi32(PTAC_ROOT_LAST);
    /* Negative numbers are below first, as signed integers. */
    const __m256i even = _mm256_andnot_si256(_mm256_cmpgt_epi32(bits, last),
                                             _mm256_cmpgt_epi32(bits, first));
    const __m256 half = _mm256_set1_ps(0.5f), y = _mm256_rsqrt_ps(x);
    __m256 s = _mm256_mul_ps(x, y), h = _mm256_mul_ps(half, y), r;

    if (__builtin_expect(~_mm256_movemask_epi8(_mm256_or_si256(even, zero)), 0)) {
        float in[LANES], out[LANES];

        _mm256_storeu_ps(in, x);
        ptac_the_host.sqrt_f32(in, out, LANES);
        return _mm256_loadu_ps(out);
    }
    r = _mm256_sub_ps(half, _mm256_mul_ps(s, h));
    s = _mm256_add_ps(s, _mm256_mul_ps(s, r));
    h = _mm256_add_ps(h, _mm256_mul_ps(h, r));
    r = _mm256_sub_ps(x, _mm256_mul_ps(s, s));
    return _mm256_andnot_ps(_mm256_castsi256_ps(zero),
                            _mm256_add_ps(s, _mm256_mul_ps(r, h)));
}

TARGET static inline __m256 root_f32(__m256 x)
{
    return ptac_the_host.sqrt_rule == PTAC_SQRT_IEEE ? _mm256_sqrt_ps(x)
                                                     : refined_root(x);
}

#include "ops/optim/adam_tpl.h"

#include "ops/optim/undef_tpl.h"

#include "ops/optim/avx2_f64_tpl.h"

TARGET static inline __m256d maximum_f64(__m256d a, __m256d b)
{
    return _mm256_blendv_pd(_mm256_max_pd(a, b), a, _mm256_cmp_pd(a, a, _CMP_UNORD_Q));
}

#include "ops/optim/adam_tpl.h"

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, adam_range_f32, adam_range_f64);
}

PTAC_ROW(ADAM_STEP, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_step_accepts_fused, run)

PTAC_ROW(ADAMW_STEP, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_step_accepts_fused, run)
#endif
