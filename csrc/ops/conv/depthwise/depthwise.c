/*
 * depthwise.c - shape kinds of depthwise convolutions.
 */
#include "ops/conv/depthwise/depthwise.h"

static int size_of(const ptac_depthwise *p)
{
    const bool is_strided = p->stride_h == 2;

    if (p->kernel_h != p->kernel_w || p->stride_h != p->stride_w || p->stride_h > 2 ||
        p->dilation_h != 1 || p->dilation_w != 1)
        return PTAC_DEPTHWISE_OTHER;
    switch (p->kernel_h) {
    case 3:
        return is_strided ? PTAC_DEPTHWISE_3X3_STRIDED : PTAC_DEPTHWISE_3X3;
    case 5:
        return is_strided ? PTAC_DEPTHWISE_5X5_STRIDED : PTAC_DEPTHWISE_5X5;
    case 7:
        return is_strided ? PTAC_DEPTHWISE_OTHER : PTAC_DEPTHWISE_7X7;
    default:
        return PTAC_DEPTHWISE_OTHER;
    }
}

static int kind_of(const ptac_depthwise *p)
{
    const int columns = p->result == PTAC_CONV_DATA ? p->w : p->out_w;

    if (p->channels_last)
        return p->kernel_h <= 3 && p->kernel_w <= 3 ? PTAC_DEPTHWISE_NHWC_SMALL
                                                    : PTAC_DEPTHWISE_NHWC;
    if (p->h == 1 && p->kernel_h == 1)
        return PTAC_DEPTHWISE_1D;
    return size_of(p) + (columns <= PTAC_DEPTHWISE_NARROW) * PTAC_DEPTHWISE_N_SIZES;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_depthwise *p = call->params;

    if (p->n == 0 || p->channels == 0)
        return PTAC_EMPTY;
    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    shape->kind = kind_of(p);
    shape->work = ptac_depthwise_work(p);
    if (p->result == PTAC_CONV_WEIGHT)
        shape->kind += PTAC_DEPTHWISE_N_KINDS;
    return PTAC_TAKE;
}

#define SIZES(width, after)                                                            \
    "3x3" width after, "3x3_strided" width after, "5x5" width after,                   \
        "5x5_strided" width after, "7x7" width after, "other" width after
#define KINDS(after)                                                                   \
    SIZES("", after), SIZES("_narrow", after), "1d" after, "nhwc_3x3" after,           \
        "nhwc" after

PTAC_SHAPES(DEPTHWISE_CONV2D, classify, KINDS(""))
PTAC_SHAPES(DEPTHWISE_CONV2D_BACKWARD, classify, KINDS("_data"), KINDS("_weight"))
