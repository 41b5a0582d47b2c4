/*
 * weight.c - quantizing weights, once in a model's life.
 */
#include "ops/int8/weight.h"

#include "core/cpu.h"
#include "core/host.h"

#include <math.h>

enum {
    GRAIN = 1 << 14, /* weights that are worth a thread */
};

/* Below it 127 / absmax is infinite or nearly so. */
#define LEAST_ABSMAX 0x1p-113f

/* Added and taken away it rounds what is below 2^22, half to even. */
#define ROUNDER 0x1.8p23f

typedef struct weight_job {
    const ptac_weight_rows *rows;
    const float *weight;
    int8_t *quantized;
    float *scales;
    ptac_weight_error *errors;
    int64_t k;
    int all_finite;
} weight_job;

static float absmax_of(const float *w, int64_t k, float *poison)
{
    float most = 0.0f, sum = 0.0f;

    for (int64_t i = 0; i < k; i++) {
        const float size = fabsf(w[i]);

        most = size > most ? size : most;
        sum += size * 0.0f;
    }
    *poison = sum;
    return most;
}

static ptac_weight_error round_row(const float *w, int64_t k, float by, float scale,
                                   int8_t *q)
{
    ptac_weight_error error = {0};

    for (int64_t i = 0; i < k; i++) {
        const float rounded = (w[i] * by + ROUNDER) - ROUNDER;
        const double missed = (double)w[i] - (double)scale * (double)rounded;

        q[i] = (int8_t)rounded;
        error.signal += (double)w[i] * (double)w[i];
        error.noise += missed * missed;
    }
    return error;
}

static const ptac_weight_rows scalar_rows = {absmax_of, round_row};

static const ptac_weight_rows *best_rows(void)
{
#if defined(__x86_64__)
    if (ptac_cpu_features() & PTAC_CPU_AVX512)
        return &ptac_weight_avx512;
#endif
    return &scalar_rows;
}

static void quantize_rows(int64_t begin, int64_t end, void *context)
{
    weight_job *job = context;

    for (int64_t n = begin; n < end; n++) {
        const float *w = job->weight + n * job->k;
        float poison;
        const float absmax = job->rows->absmax(w, job->k, &poison);
        const bool is_zero = absmax < LEAST_ABSMAX;

        if (poison != 0.0f) {
            __atomic_store_n(&job->all_finite, 0, __ATOMIC_RELAXED);
            return;
        }
        job->scales[n] = is_zero ? 0.0f : absmax / 127.0f;
        job->errors[n] = job->rows->round(w, job->k, is_zero ? 0.0f : 127.0f / absmax,
                                          job->scales[n], job->quantized + n * job->k);
    }
}

bool ptac_quantize_weight(const float *weight, int64_t n, int64_t k, int8_t *quantized,
                          float *scales, ptac_weight_error *errors)
{
    weight_job job = {
        .rows = best_rows(),
        .weight = weight,
        .quantized = quantized,
        .scales = scales,
        .errors = errors,
        .k = k,
        .all_finite = 1,
    };

    ptac_parallel_for(0, n, 1 + GRAIN / (1 + k), quantize_rows, &job);
    return job.all_finite;
}
