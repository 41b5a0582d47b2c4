/*
 * max_pool2d_avx2.c - max pooling, eight float or four double lanes at a time.
 *
 * The algorithm is in max_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx2.h"

#include "ops/pool/max/max_pool2d_vec.h"

static const ptac_kernel max_pool2d_avx2 = {
    .op = PTAC_OP_MAX_POOL2D,
    .name = "avx2",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_avx2)
#endif
