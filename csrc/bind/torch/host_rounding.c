/*
 * host_rounding.c - what torch lends the core, and how torch rounds.
 *
 * Rows of level exact must round as torch's own kernels do on this machine, which
 * depends on how torch was built and on the CPU. Torch shows it on samples, and what
 * reproduces the samples bit for bit is taken for its habit.
 */
#include "bind/torch/bridge.h"
#include "ops/optim/root.h"

#include <math.h>

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

void ptac_host_install(void)
{
    ptac_the_host.parallel_for = torch_threads;
    ptac_the_host.n_threads = torch_n_threads;
}

/*
 * VML_HA, VML_FTZDAZ_OFF and VML_ERRMODE_IGNORE: the mode that ATen's vml.h asks for.
 */
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

static bool roots_are_refined(const float *x, const float *roots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float root;

        if (ptac_refined_root(x[i], &root) && root != roots[i])
            return false;
    }
    return true;
}

static bool learn_sqrt_f32(const float *x, const float *roots, int64_t n)
{
    enum { CHUNK = 64 };
    float chunk[CHUNK];
    int64_t i = 0;

    while (i < n && sqrtf(x[i]) == roots[i])
        i++;
    if (i == n) {
        ptac_the_host.sqrt_rule = PTAC_SQRT_IEEE;
        return true;
    }
    if (!T.mkl_sqrt_f32)
        return false;
    for (i = 0; i + CHUNK <= n; i += CHUNK) {
        mkl_sqrt_f32(x + i, chunk, CHUNK);
        for (int j = 0; j < CHUNK; j++)
            if (chunk[j] != roots[i + j])
                return false;
    }
    ptac_the_host.sqrt_f32 = mkl_sqrt_f32;
    ptac_the_host.sqrt_rule =
        roots_are_refined(x, roots, n) ? PTAC_SQRT_REFINED : PTAC_SQRT_CALL;
    return true;
}

static bool learn_sqrt_f64(const double *x, const double *roots, int64_t n)
{
    enum { CHUNK = 64 };
    double chunk[CHUNK];
    int64_t i = 0;

    while (i < n && sqrt(x[i]) == roots[i])
        i++;
    if (i == n) {
        ptac_the_host.sqrt_rule_f64 = PTAC_SQRT_IEEE;
        return true;
    }
    if (!T.mkl_sqrt_f64)
        return false;
    for (i = 0; i + CHUNK <= n; i += CHUNK) {
        mkl_sqrt_f64(x + i, chunk, CHUNK);
        for (int j = 0; j < CHUNK; j++)
            if (chunk[j] != roots[i + j])
                return false;
    }
    ptac_the_host.sqrt_f64 = mkl_sqrt_f64;
    ptac_the_host.sqrt_rule_f64 = PTAC_SQRT_CALL;
    return true;
}

bool ptac_learn_sqrt(const ptac_view *x, const ptac_view *roots)
{
    if (x->dtype == PTAC_F32)
        return learn_sqrt_f32(x->data, roots->data, x->n_elements);
    return learn_sqrt_f64(x->data, roots->data, x->n_elements);
}

bool ptac_learn_fma(const ptac_view *a, const ptac_view *b, float alpha,
                    const ptac_view *sum)
{
    const float *x = a->data, *y = b->data, *s = sum->data;
    bool is_fused = true, is_separate = true;

    for (int64_t i = 0; i < a->n_elements; i++) {
        is_fused &= fmaf(alpha, y[i], x[i]) == s[i];
        is_separate &= alpha * y[i] + x[i] == s[i];
    }
    ptac_the_host.fma = is_fused;
    return is_fused != is_separate;
}
