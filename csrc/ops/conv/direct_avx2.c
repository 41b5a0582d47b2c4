/*
 * direct_avx2.c - convolution of few input channels, eight float lanes at a time.
 *
 * The algorithm is in direct_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#include "ops/conv/direct_tpl.h"

static const ptac_kernel conv2d_direct = {
    .op = PTAC_OP_CONV2D,
    .name = "direct_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .spreads = true,
    .accepts = ptac_direct_accepts,
    .run = run_direct,
};
PTAC_REGISTER(conv2d_direct)

static const ptac_kernel conv2d_backward_direct = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "direct_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .spreads = true,
    .accepts = ptac_direct_accepts,
    .run = run_direct,
};
PTAC_REGISTER(conv2d_backward_direct)
#endif
