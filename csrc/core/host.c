/*
 * host.c - the host of a program that brings none: one thread and libm.
 */
#include "core/host.h"

#include <math.h>

static void serial_for(int64_t begin, int64_t end, int64_t grain, ptac_range_fn body,
                       void *context)
{
    (void)grain;
    body(begin, end, context);
}

static int one_thread(void)
{
    return 1;
}

static void libm_sqrt_f32(const float *in, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = sqrtf(in[i]);
}

static void libm_sqrt_f64(const double *in, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = sqrt(in[i]);
}

ptac_host ptac_the_host = {
    .parallel_for = serial_for,
    .n_threads = one_thread,
    .sqrt_f32 = libm_sqrt_f32,
    .sqrt_f64 = libm_sqrt_f64,
    .sqrt_rule = PTAC_SQRT_IEEE,
    .sqrt_rule_f64 = PTAC_SQRT_IEEE,
    .fma = true,
};
