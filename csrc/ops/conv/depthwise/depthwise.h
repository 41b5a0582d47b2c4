/*
 * depthwise.h - convolution of each channel by a kernel of its own, and its gradients.
 * float32. Level close.
 *
 *   y[n, c, i, j] = bias[c] + sum over a, b of w[c, a, b] *
 *                   x[n, c, i * stride - pad + a * dilation, j * stride - pad + ...]
 *
 * groups == in_channels == out_channels in torch's words. Images are NCHW, or NHWC
 * where channels_last says so; the weight is [channel][kernel_h][kernel_w] in both.
 * Convolutions of one dimension have h = kernel_h = 1.
 *
 * Calls of depthwise_conv2d have inputs x, w and, where there is one, bias, and output
 * y. Where asked for, an epilogue follows: with a fourth input, scale, y is scale[c]
 * times the sum, plus bias[c]; then ReLU or ReLU6. Calls of depthwise_conv2d_backward
 * ask for one gradient:
 *
 *   data      inputs grad_y, w; output grad_x
 *   weight    inputs x, grad_y; output grad_w and, where asked for, grad_bias
 *
 * Whatever the row, a result has the same bits at each repetition and with any number
 * of threads, and does not depend on the other images of a batch, but for grad_w and
 * grad_bias, which sum over them.
 *
 * Vector rows multiply with the zeros of the padding, where stock leaves these out: NaN
 * and infinity in weights, and for grad_w in grad_y, reach results at the border as
 * NaN. Outputs and grad_x are otherwise non-finite where stock's are.
 */
#ifndef PTAC_OPS_CONV_DEPTHWISE_DEPTHWISE_H
#define PTAC_OPS_CONV_DEPTHWISE_DEPTHWISE_H

#include "ops/conv/conv2d.h"

/* The forward convolution, whichever result is asked for; act follows it alone. */
typedef struct ptac_depthwise {
    ptac_conv_result result;
    int64_t n;
    int channels;
    int h, w, out_h, out_w;
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dilation_h, dilation_w;
    ptac_act act; /* none, ReLU or ReLU6 */
    bool channels_last;
} ptac_depthwise;

enum {
    PTAC_DEPTHWISE_MOST_KERNEL = 9,
    PTAC_DEPTHWISE_NARROW = 8, /* columns, at most, of narrow images */
};

/*
 * Shape kinds: square kernels without dilation by size and stride; each of images that
 * are wide, and then of such as have few columns, by the result's. Within a kind
 * multiply-adds count.
 */
enum {
    PTAC_DEPTHWISE_3X3,
    PTAC_DEPTHWISE_3X3_STRIDED,
    PTAC_DEPTHWISE_5X5,
    PTAC_DEPTHWISE_5X5_STRIDED,
    PTAC_DEPTHWISE_7X7,
    PTAC_DEPTHWISE_OTHER,
    PTAC_DEPTHWISE_N_SIZES,
    PTAC_DEPTHWISE_1D = 2 * PTAC_DEPTHWISE_N_SIZES, /* one row */
    PTAC_DEPTHWISE_NHWC_SMALL,                      /* kernels up to 3x3 */
    PTAC_DEPTHWISE_NHWC,
    PTAC_DEPTHWISE_N_KINDS,
};

static inline int64_t ptac_depthwise_work(const ptac_depthwise *p)
{
    return p->n * p->channels * p->out_h * p->out_w * p->kernel_h * p->kernel_w;
}

#endif
