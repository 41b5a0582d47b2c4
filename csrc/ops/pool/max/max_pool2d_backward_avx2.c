/*
 * max_pool2d_backward_avx2.c - max pooling's gradient, eight floats at a time.
 *
 * The algorithm is in max_pool2d_backward_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/max/max_pool2d_backward_vec.h"

static const ptac_kernel max_pool2d_backward_avx2 = {
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .name = "avx2",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_backward_avx2)
#endif
