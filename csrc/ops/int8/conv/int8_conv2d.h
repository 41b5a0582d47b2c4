/*
 * int8_conv2d.h - convolution of images with weights and activations as int8.
 *
 * Weights have a scale for each output channel. Activations have a scale and a zero
 * point, found in the call: one for each image, or for each band of its pixels where
 * the window is a single point without padding. Padding is exactly zero. The sums are
 * exact, so that all rows give the same bits and the number of threads changes none. An
 * image, or band, with NaN or infinity gives NaN in all of its outputs.
 *
 * A batch normalization that follows may be folded in: its statistics are read at each
 * call, scale and bias of a channel become scale * factor and (bias - mean) * factor +
 * shift, where factor = weight / sqrt(variance + eps).
 *
 * As int8_linear, it serves who has decided before.
 */
#ifndef PTAC_OPS_INT8_CONV_INT8_CONV2D_H
#define PTAC_OPS_INT8_CONV_INT8_CONV2D_H

#include "core/kernel.h"
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"

enum {
    PTAC_INT8_CONV_X,
    PTAC_INT8_CONV_PACKED,
    PTAC_INT8_CONV_SCALES,
    PTAC_INT8_CONV_BIAS,     /* no data: 0 */
    PTAC_INT8_CONV_WEIGHT,   /* of the normalization; no data: 1 */
    PTAC_INT8_CONV_SHIFT,    /* its bias; no data: 0 */
    PTAC_INT8_CONV_MEAN,     /* no data: nothing is folded in */
    PTAC_INT8_CONV_VARIANCE, /* there where mean is */
    PTAC_INT8_CONV_INPUTS,
};

/*
 * x is [batch, groups * c, height, width], y [batch, n, out_height, out_width], both
 * dense and NCHW, or NHWC. c counts the input channels of one group.
 */
typedef struct ptac_int8_conv2d {
    int64_t batch, groups, c, n;
    int64_t height, width, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    double eps;
    bool channels_last, relu;
} ptac_int8_conv2d;

static inline ptac_packed_shape ptac_int8_conv2d_weight(const ptac_int8_conv2d *p)
{
    return (ptac_packed_shape){
        .n = p->n, .c = p->c, .taps = p->kernel[0] * p->kernel[1], .groups = p->groups};
}

enum {
    PTAC_INT8_MOST_TAPS = 128,     /* windows of more places do not occur */
    PTAC_INT8_MOST_STEP = 1 << 30, /* steps, margins, n, sides of images */
};

/* Shape kinds by window. work is the weights of one group, n / groups * c * taps. */
enum {
    PTAC_INT8_CONV_1X1,
    PTAC_INT8_CONV_3X3,
    PTAC_INT8_CONV_OTHER,
    PTAC_INT8_CONV_FEW,     /* less than 16 input channels in a group */
    PTAC_INT8_CONV_GROUPED, /* more than one group */
};

/*
 * Whether the numbers that do not tell of images (n, c, groups, kernel, stride,
 * padding, dilation) are those of a convolution and small enough to be multiplied.
 */
bool ptac_int8_conv2d_is_sound(const ptac_int8_conv2d *p);

/* Places of the window on an axis, 0 or 1: what out_height and out_width have to be. */
int64_t ptac_int8_conv2d_places(const ptac_int8_conv2d *p, int axis);

ptac_reason ptac_int8_conv2d_accepts(const ptac_call *call);
ptac_status ptac_int8_conv2d_run(const ptac_call *call, const ptac_int8_isa *isa);

#endif
