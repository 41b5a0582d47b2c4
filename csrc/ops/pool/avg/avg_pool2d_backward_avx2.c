/*
 * avg_pool2d_backward_avx2.c - average pooling's gradient, eight float or four double
 * lanes at a time.
 *
 * The algorithm is in avg_pool2d_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/avg/avg_pool2d_backward_vec.h"

static const ptac_kernel avg_pool2d_backward_avx2 = {
    .op = PTAC_OP_AVG_POOL2D_BACKWARD,
    .name = "avx2",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(avg_pool2d_backward_avx2)

static const ptac_kernel adaptive_avg_pool2d_backward_avx2 = {
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD,
    .name = "avx2",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(adaptive_avg_pool2d_backward_avx2)
#endif
