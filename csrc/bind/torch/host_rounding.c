/*
 * host_rounding.c - what torch lends the core, and how torch rounds.
 *
 * Rows of level exact must round as torch's own kernels do on this machine, which
 * depends on how torch was built and on the CPU. Torch shows it on samples, and what
 * reproduces the samples bit for bit is taken for its habit.
 */
#include "bind/torch/bridge.h"
#include "core/cpu.h"
#include "ops/optim/root.h"

#include <math.h>
#include <string.h>

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
    PIECE = 64, /* samples that are asked for at once */
};

/* Whether rule gives these roots, where it gives any. */
static bool are_roots_by(bool (*rule)(float, float *), const ptac_view *x,
                         const ptac_view *roots)
{
    const float *in = x->data, *expected = roots->data;

    for (int64_t i = 0; i < x->n_elements; i++) {
        float root;

        if (rule(in[i], &root) && root != expected[i])
            return false;
    }
    return true;
}

/* learn_<type>(): which of two functions gives these roots, in pieces of one length. */
#define LEARN_SQRT(type, ieee, mkl, function, rule)                                    \
    static void ieee_##type(const type *in, type *out, int64_t n)                      \
    {                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                \
            out[i] = ieee(in[i]);                                                      \
    }                                                                                  \
    static void mkl_##type(const type *in, type *out, int64_t n)                       \
    {                                                                                  \
        mkl((int)n, in, out, VML_MODE);                                                \
    }                                                                                  \
    static bool gives_##type(void (*root)(const type *, type *, int64_t),              \
                             const ptac_view *x, const ptac_view *roots)               \
    {                                                                                  \
        const type *in = x->data, *expected = roots->data;                             \
        type piece[PIECE];                                                             \
                                                                                       \
        for (int64_t i = 0; i + PIECE <= x->n_elements; i += PIECE) {                  \
            root(in + i, piece, PIECE);                                                \
            if (memcmp(piece, expected + i, sizeof piece) != 0)                        \
                return false;                                                          \
        }                                                                              \
        return true;                                                                   \
    }                                                                                  \
    static bool learn_##type(const ptac_view *x, const ptac_view *roots)               \
    {                                                                                  \
        const bool is_ieee = gives_##type(ieee_##type, x, roots);                      \
                                                                                       \
        if (!is_ieee && (!mkl || !gives_##type(mkl_##type, x, roots)))                 \
            return false;                                                              \
        if (!is_ieee)                                                                  \
            ptac_the_host.function = mkl_##type;                                       \
        ptac_the_host.rule = is_ieee ? PTAC_SQRT_IEEE : PTAC_SQRT_CALL;                \
        return true;                                                                   \
    }
LEARN_SQRT(float, sqrtf, T.mkl_sqrt_f32, sqrt_f32, sqrt_rule)
LEARN_SQRT(double, sqrt, T.mkl_sqrt_f64, sqrt_f64, sqrt_rule_f64)

bool ptac_learn_sqrt(const ptac_view *x, const ptac_view *roots)
{
    if (x->dtype == PTAC_F64)
        return learn_double(x, roots);
    if (!learn_float(x, roots))
        return false;
    if (ptac_the_host.sqrt_rule == PTAC_SQRT_IEEE)
        return true;
    if (are_roots_by(ptac_refined_root, x, roots))
        ptac_the_host.sqrt_rule = PTAC_SQRT_REFINED;
    else if ((ptac_cpu_features() & PTAC_CPU_AVX512) != 0 &&
             are_roots_by(ptac_corrected_root, x, roots))
        ptac_the_host.sqrt_rule = PTAC_SQRT_CORRECTED;
    return true;
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
