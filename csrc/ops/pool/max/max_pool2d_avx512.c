/*
 * max_pool2d_avx512.c - max pooling, sixteen float or eight double lanes at a time.
 *
 * The algorithm is in max_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#include "ops/pool/max/max_pool2d_vec.h"

static const ptac_kernel max_pool2d_avx512 = {
    .op = PTAC_OP_MAX_POOL2D,
    .name = "avx512",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX512,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_avx512)
#endif
