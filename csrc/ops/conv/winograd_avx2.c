/*
 * winograd_avx2.c - convolution by transformed tiles, eight float lanes at a time.
 *
 * The algorithm is in winograd_tpl.h and winograd_weight_tpl.h; this file names the
 * lanes and the rows.
 */
#if defined(__x86_64__)
#include "ops/math/lanes_avx2.h"

#define ROWS_OF_TILES 6
#include "ops/conv/winograd_weight_tpl.h"

DEFINE_WINOGRAD(2x2, 2, 2, 3)
DEFINE_WINOGRAD(4x2, 4, 2, 3)
DEFINE_WINOGRAD(4x4, 4, 4, 3)
DEFINE_WINOGRAD(2x2_of_5x5, 2, 2, 5)

static ptac_reason accepts_data_4x4(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_WEIGHT ? PTAC_SHAPE : accepts_4x4(call);
}

static ptac_reason accepts_weight_4x4(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool may = p->result == PTAC_CONV_WEIGHT && !ptac_winograd_is_short_sum(call);

    return may ? accepts_4x4(call) : PTAC_SHAPE;
}

static ptac_reason accepts_backward_of_5x5(const ptac_call *call)
{
    return ptac_winograd_is_short_sum(call) ? PTAC_SHAPE : accepts_2x2_of_5x5(call);
}

static const ptac_kernel conv2d_2x2 = {
    .op = PTAC_OP_CONV2D,
    .name = "winograd_2x2_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_2x2,
    .run = run_2x2,
};
PTAC_REGISTER(conv2d_2x2)

static const ptac_kernel conv2d_backward_2x2 = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "winograd_2x2_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_2x2,
    .run = run_2x2,
};
PTAC_REGISTER(conv2d_backward_2x2)

static const ptac_kernel conv2d_4x2 = {
    .op = PTAC_OP_CONV2D,
    .name = "winograd_4x2_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_4x2,
    .run = run_4x2,
};
PTAC_REGISTER(conv2d_4x2)

static const ptac_kernel conv2d_backward_4x2 = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "winograd_4x2_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_4x2,
    .run = run_4x2,
};
PTAC_REGISTER(conv2d_backward_4x2)

static const ptac_kernel conv2d_4x4 = {
    .op = PTAC_OP_CONV2D,
    .name = "winograd_4x4_avx2",
    .level = PTAC_FAST,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_4x4,
    .run = run_4x4,
};
PTAC_REGISTER(conv2d_4x4)

static const ptac_kernel conv2d_data_4x4 = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "winograd_4x4_data_avx2",
    .level = PTAC_FAST,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_data_4x4,
    .run = run_4x4,
};
PTAC_REGISTER(conv2d_data_4x4)

static const ptac_kernel conv2d_weight_4x4 = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "winograd_4x4_weight_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_weight_4x4,
    .run = run_4x4,
};
PTAC_REGISTER(conv2d_weight_4x4)

static const ptac_kernel conv2d_2x2_of_5x5 = {
    .op = PTAC_OP_CONV2D,
    .name = "winograd_2x2_of_5x5_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_2x2_of_5x5,
    .run = run_2x2_of_5x5,
};
PTAC_REGISTER(conv2d_2x2_of_5x5)

static const ptac_kernel conv2d_backward_2x2_of_5x5 = {
    .op = PTAC_OP_CONV2D_BACKWARD,
    .name = "winograd_2x2_of_5x5_avx2",
    .level = PTAC_CLOSE,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts_backward_of_5x5,
    .run = run_2x2_of_5x5,
};
PTAC_REGISTER(conv2d_backward_2x2_of_5x5)
#endif
