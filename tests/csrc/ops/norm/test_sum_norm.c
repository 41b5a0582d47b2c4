/*
 * test_sum_norm.c - bias, residual and norm in one pass: values and memory.
 */
#include "arena.h"
#include "core/cpu.h"
#include "ops/norm/layer/sum_norm.h"
#include "threads.h"
#include "unit.h"

#include <math.h>
#include <string.h>

enum {
    X,
    BIAS,
    RESIDUAL,
    SUM,
    Y,
    WEIGHT,
    NORM_BIAS,
    N_SLOTS,
    MOST = 1 << 15,
};

static ptac_range_fn way(int i)
{
#if defined(__x86_64__)
    const uint32_t have = ptac_cpu_features();

    if (i == 1 && (have & PTAC_CPU_AVX2))
        return ptac_sum_norm_avx2;
    if (i == 2 && (have & PTAC_CPU_AVX512))
        return ptac_sum_norm_avx512;
#endif
    return i == 0 ? ptac_sum_norm_scalar : NULL;
}

static float *drawn(rng *r, int slot, int64_t n)
{
    float *to = arena_place(r, slot, (size_t)n * sizeof *to, sizeof *to);

    fill_smooth(r, PTAC_F32, to, n, 2);
    return to;
}

/* What is to come out, of a job that has not run. */
static void define(const ptac_sum_norm *job, double *sums, double *ys)
{
    const int64_t n = job->is.width;

    for (int64_t row = 0; row < job->is.n_rows; row++) {
        double mean = 0, squares = 0;

        for (int64_t i = row * n; i < (row + 1) * n; i++) {
            sums[i] = job->x[i];
            if (job->sum && job->bias)
                sums[i] = (float)(sums[i] + job->bias[i - row * n]);
            if (job->sum && job->residual)
                sums[i] = (float)(sums[i] + job->residual[i]);
            mean += sums[i] / (double)n;
        }
        for (int64_t i = row * n; i < (row + 1) * n; i++)
            squares += (sums[i] - mean) * (sums[i] - mean);
        for (int64_t i = row * n; job->y && i < (row + 1) * n; i++)
            ys[i] = (sums[i] - mean) / sqrt(squares / (double)n + job->is.eps) *
                        job->weight[i - row * n] +
                    job->bias_of_norm[i - row * n];
    }
}

/* Sums and y may lie where x does, and y where sums do. */
static ptac_sum_norm random_job(rng *r)
{
    const int64_t n = rng_length(r, 600), n_rows = rng_between(r, 1, 40);
    const int64_t all = n * n_rows;
    ptac_sum_norm job = {
        .bias = rng_chance(r, 70) ? drawn(r, BIAS, n) : NULL,
        .residual = rng_chance(r, 70) ? drawn(r, RESIDUAL, all) : NULL,
        .weight = drawn(r, WEIGHT, n),
        .bias_of_norm = drawn(r, NORM_BIAS, n),
        .is = {.n_rows = n_rows, .width = n, .eps = 1e-5},
    };
    float *x = drawn(r, X, all);

    job.x = x;
    if (rng_chance(r, 80))
        job.sum = rng_chance(r, 50) ? x : drawn(r, SUM, all);
    if (!job.sum || rng_chance(r, 80))
        job.y = rng_chance(r, 30)              ? x
                : job.sum && rng_chance(r, 40) ? job.sum
                                               : drawn(r, Y, all);
    return job;
}

static bool is_near(const ptac_sum_norm *job, const double *sums, const double *ys)
{
    const int64_t all = job->is.n_rows * job->is.width;

    for (int64_t i = 0; i < all; i++) {
        if (job->y && !(fabs(job->y[i] - ys[i]) <= 1e-3 + 1e-3 * fabs(ys[i])))
            return false;
        if (job->sum && job->sum != job->y && (double)job->sum[i] != sums[i])
            return false;
    }
    return true;
}

UNIT(sums_and_norms_of_rows)
{
    static double sums[MOST], ys[MOST];
    const uint64_t n_cases = unit_amount(150, 2000);
    rng r = {1};

    arena_prepare();
    for (uint64_t k = 0; k < n_cases; k++) {
        for (int i = 0; i < 3 && way(i); i++) {
            ptac_sum_norm job;

            arena_forbid(false);
            job = random_job(&r);
            define(&job, sums, ys);
            way(i)(0, job.is.n_rows, &job);
            EXPECT(is_near(&job, sums, ys));
            for (int slot = 0; slot < N_SLOTS; slot++)
                EXPECT(!arena_damage(slot));
        }
    }
}

UNIT(threads_share_rows_of_sum_norm)
{
    enum { WIDTH = 512, ROWS = 128 };
    static float x[WIDTH * ROWS], one[WIDTH * ROWS], many[WIDTH * ROWS], w[WIDTH];
    ptac_sum_norm job = {.x = x,
                         .y = one,
                         .weight = w,
                         .bias_of_norm = w,
                         .is = {.n_rows = ROWS, .width = WIDTH, .eps = 1e-5}};
    rng r = {2};

    fill_smooth(&r, PTAC_F32, x, WIDTH * ROWS, 1);
    fill_smooth(&r, PTAC_F32, w, WIDTH, 1);
    ptac_sum_norm_run(&job);
    threads_install(3, &r);
    job.y = many;
    ptac_sum_norm_run(&job);
    threads_install(0, &r);
    EXPECT(memcmp(one, many, sizeof one) == 0);
}
