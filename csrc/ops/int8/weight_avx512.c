/*
 * weight_avx512.c - weights to int8, sixteen at a time.
 */
#if defined(__x86_64__)
#include "ops/int8/weight.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

enum {
    LANES = 16,
    SPAN = 1024, /* weights whose errors add up in float */
};

TARGET static inline __mmask16 lanes_of(int64_t left)
{
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}

TARGET static float absmax(const float *w, int64_t k, float *poison)
{
    const __m512 none = _mm512_setzero_ps();
    __m512 most = none, sum = none;

    for (int64_t i = 0; i < k; i += LANES) {
        const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes_of(k - i), w + i));

        most = _mm512_max_ps(most, v);
        sum = _mm512_fmadd_ps(v, none, sum);
    }
    *poison = _mm512_reduce_add_ps(sum);
    return _mm512_reduce_max_ps(most);
}

/* Errors in units of a step, which neither overflow nor vanish as squares of floats. */
TARGET static ptac_weight_error round_span(const float *w, int64_t k, __m512 by,
                                           int8_t *q)
{
    __m512 signal = _mm512_setzero_ps(), noise = signal;

    for (int64_t i = 0; i < k; i += LANES) {
        const __mmask16 lanes = lanes_of(k - i);
        const __m512 v = _mm512_maskz_loadu_ps(lanes, w + i);
        const __m512 steps = _mm512_mul_ps(v, by);
        const __m512i whole = _mm512_cvtps_epi32(steps);
        const __m512 missed = _mm512_sub_ps(steps, _mm512_cvtepi32_ps(whole));

        _mm_mask_storeu_epi8(q + i, lanes, _mm512_cvtepi32_epi8(whole));
        signal = _mm512_fmadd_ps(steps, steps, signal);
        noise = _mm512_fmadd_ps(missed, missed, noise);
    }
    return (ptac_weight_error){(double)_mm512_reduce_add_ps(signal),
                               (double)_mm512_reduce_add_ps(noise)};
}

TARGET static ptac_weight_error round_row(const float *w, int64_t k, float by,
                                          float scale, int8_t *q)
{
    const double square = (double)scale * (double)scale;
    const __m512 every_by = _mm512_set1_ps(by);
    ptac_weight_error sum = {0};

    for (int64_t i = 0; i < k; i += SPAN) {
        const int64_t n = k - i < SPAN ? k - i : SPAN;
        const ptac_weight_error span = round_span(w + i, n, every_by, q + i);

        sum.signal += square * span.signal;
        sum.noise += square * span.noise;
    }
    return sum;
}

const ptac_weight_rows ptac_weight_avx512 = {absmax, round_row};
#endif
