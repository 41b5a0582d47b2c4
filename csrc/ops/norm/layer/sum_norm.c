/*
 * sum_norm.c - the choice between the ways of sum_norm, and its definition.
 */
#include "ops/norm/layer/sum_norm.h"

#include "core/cpu.h"

enum {
    SHARE = 16384, /* elements that are worth another thread */
};

/* Float sums, as stock's. */
static float sum_at(const ptac_sum_norm *job, const float *x, int64_t row, int64_t i)
{
    float sum = x[i];

    if (job->bias)
        sum += job->bias[i];
    if (job->residual)
        sum += job->residual[row * job->is.width + i];
    return sum;
}

void ptac_sum_norm_scalar(int64_t begin, int64_t end, void *context)
{
    const ptac_sum_norm *job = context;
    const int64_t n = job->is.width;

    for (int64_t row = begin; row < end; row++) {
        const float *x = job->x + row * n;
        float *sum = job->sum ? job->sum + row * n : NULL;
        double mean, rstd;

        for (int64_t i = 0; sum && i < n; i++)
            sum[i] = sum_at(job, x, row, i);
        if (!job->y)
            continue;
        x = sum ? sum : x;
        rstd = ptac_norm_statistics(&job->is, x, &mean);
        for (int64_t i = 0; i < n; i++)
            job->y[row * n + i] =
                (float)((x[i] - mean) * rstd * job->weight[i] + job->bias_of_norm[i]);
    }
}

static ptac_range_fn best(void)
{
#if defined(__x86_64__)
    const uint32_t have = ptac_cpu_features();

    if (have & PTAC_CPU_AVX512)
        return ptac_sum_norm_avx512;
    if (have & PTAC_CPU_AVX2)
        return ptac_sum_norm_avx2;
#endif
    return ptac_sum_norm_scalar;
}

void ptac_sum_norm_run(const ptac_sum_norm *job)
{
    if (job->is.width > 0)
        ptac_parallel_for(0, job->is.n_rows, SHARE / job->is.width + 1, best(),
                          (void *)job);
}
