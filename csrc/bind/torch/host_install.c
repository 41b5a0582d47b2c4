/*
 * host_install.c - lending torch's threads to the core.
 */
#include "bind/torch/bridge.h"

static void torch_threads(int64_t begin, int64_t end, int64_t grain, ptac_range_fn body,
                          void *context)
{
    T.torch_parallel_for(begin, end, grain, body, context);
}

static int torch_n_threads(void)
{
    uint32_t n = 1;

    T.torch_get_num_threads(&n);
    return n > 0 ? (int)n : 1;
}

/* VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, the mode that ATen's vml.h asks for. */
enum {
    VML_MODE = 0x00000002 | 0x00140000 | 0x00000100,
};

static void mkl_sqrt_f32(const float *in, float *out, int64_t n)
{
    T.mkl_sqrt_f32((int)n, in, out, VML_MODE);
}

static void mkl_sqrt_f64(const double *in, double *out, int64_t n)
{
    T.mkl_sqrt_f64((int)n, in, out, VML_MODE);
}

void ptac_host_install(void)
{
    ptac_the_host.parallel_for = torch_threads;
    ptac_the_host.n_threads = torch_n_threads;
    if (T.mkl_sqrt_f32)
        ptac_the_host.sqrt_f32 = mkl_sqrt_f32;
    if (T.mkl_sqrt_f64)
        ptac_the_host.sqrt_f64 = mkl_sqrt_f64;
}
