/*
 * weight_avx512.c - weights to int8, sixteen at a time.
 */
#if defined(__x86_64__)
#include "ops/int8/weight.h"

#include "ops/math/lanes_avx512.h"

enum {
    SPAN = 1024, /* weights whose errors add up in float */
};

TARGET static float absmax(const float *w, int64_t k, float *poison)
{
    vec most = v_zero(), sum = v_zero();

    for (int64_t i = 0; i < k; i += LANES) {
        const vec v = v_abs(v_load_first(w + i, at_most_lanes(k - i)));

        most = v_max(most, v);
        sum = v_fma(v, v_zero(), sum);
    }
    *poison = v_sum(sum);
    return v_largest(most);
}

/* Errors in units of a step, which neither overflow nor vanish as squares of floats. */
TARGET static ptac_weight_error round_span(const float *w, int64_t k, vec by, int8_t *q)
{
    vec signal = v_zero(), noise = signal;

    for (int64_t i = 0; i < k; i += LANES) {
        const int n = at_most_lanes(k - i);
        const vec v = v_load_first(w + i, n);
        const vec steps = v_mul(v, by);
        const __m512i whole = _mm512_cvtps_epi32(steps);
        const vec missed = v_sub(steps, _mm512_cvtepi32_ps(whole));

        _mm_mask_storeu_epi8(q + i, v_first(n), _mm512_cvtepi32_epi8(whole));
        signal = v_fma(steps, steps, signal);
        noise = v_fma(missed, missed, noise);
    }
    return (ptac_weight_error){(double)v_sum(signal), (double)v_sum(noise)};
}

TARGET static ptac_weight_error round_row(const float *w, int64_t k, float by,
                                          float scale, int8_t *q)
{
    const double square = (double)scale * (double)scale;
    const vec every_by = v_set(by);
    ptac_weight_error sum = {0};

    for (int64_t i = 0; i < k; i += SPAN) {
        const int64_t n = ptac_least(k - i, SPAN);
        const ptac_weight_error span = round_span(w + i, n, every_by, q + i);

        sum.signal += square * span.signal;
        sum.noise += square * span.noise;
    }
    return sum;
}

const ptac_weight_rows ptac_weight_avx512 = {absmax, round_row};
#endif
