/*
 * avg_pool2d_avx512.c - average pooling, sixteen float or eight double lanes at a time.
 *
 * The algorithm is in avg_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/typed_avx512.h"

#include "ops/pool/avg/avg_pool2d_vec.h"

static const ptac_kernel avg_pool2d_avx512 = {
    .op = PTAC_OP_AVG_POOL2D,
    .name = "avx512",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX512,
    .accepts = ptac_avg_pool2d_accepts,
    .run = run,
};
PTAC_REGISTER(avg_pool2d_avx512)

static const ptac_kernel adaptive_avg_pool2d_avx512 = {
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D,
    .name = "avx512",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX512,
    .accepts = ptac_avg_pool2d_accepts,
    .run = run,
};
PTAC_REGISTER(adaptive_avg_pool2d_avx512)
#endif
