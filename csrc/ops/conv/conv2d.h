/*
 * conv2d.h - convolution of images and of volumes, and its gradients. float32. Level
 * close, but for rows that round their operands, which take more: see
 * ptac_conv2d_reason().
 *
 *   y[n, k, i, j] = bias[k] + sum over c, a, b of w[k, c, a, b] times
 *       x[n, c, i * stride - pad + a * dilation, j * stride - pad + b * dilation]
 *
 * where c counts the channels of k's group; in volumes likewise along the depth. Calls
 * of conv2d have inputs x, w and, where there is one, bias, and output y. Where asked
 * for an epilogue follows: with a fourth input, scale, y is scale[k] times the sum,
 * plus bias[k]; then ReLU or ReLU6; then max pooling of 2x2 at stride 2, to out_h / 2 x
 * out_w / 2. Calls of conv2d_backward ask for one gradient:
 *
 *   data      inputs grad_y, w; output grad_x
 *   weight    inputs x, grad_y; output grad_w and, where asked for, grad_bias
 *
 * A transposed convolution is a call of conv2d that asks for data, with a bias where
 * there is one, and its gradient of the data one of conv2d_backward that asks for
 * forward. A convolution of sequences is one of images of a single row; one of images
 * is one of volumes of a single plane.
 *
 * Each input is NCHW or NHWC, without gaps, as its strides say. Results are NHWC where
 * channels_last says so, and then an input is. Volumes are NCDHW.
 *
 * Whatever the row, a result has the same bits at each repetition with as many threads;
 * results other than grad_w have them with any number of threads.
 *
 * Rows that transform tiles mix the pixels of a tile, whose outputs then all have the
 * largest one's rounding errors. Tiles of images with NaN or infinity, or with a few
 * pixels a thousand times above most others, are convolved by the definition, and where
 * many are like that stock does the call; so outputs and grad_x are non-finite where
 * stock's are. An edge between large and small areas is not seen. In weights, and for
 * grad_w, NaN and infinity reach all results that share a tile with theirs, as NaN;
 * other rows multiply them with the zeros of the padding, where stock leaves these out.
 */
#ifndef PTAC_OPS_CONV_CONV2D_H
#define PTAC_OPS_CONV_CONV2D_H

#include "core/kernel.h"
#include "ops/linear/act.h"

#include <math.h>

typedef enum ptac_conv_result {
    PTAC_CONV_FORWARD,
    PTAC_CONV_DATA,
    PTAC_CONV_WEIGHT,
} ptac_conv_result;

/* The forward convolution, whichever result is asked for; act and pool follow y. */
typedef struct ptac_conv2d {
    ptac_conv_result result;
    int64_t n;
    int in_channels, out_channels;
    int d, h, w, out_d, out_h, out_w;
    int kernel_d, kernel_h, kernel_w;
    int stride_d, stride_h, stride_w;
    int pad_d, pad_h, pad_w;
    int dilation_d, dilation_h, dilation_w;
    int groups;
    ptac_act act; /* none, ReLU or ReLU6 */
    bool with_pool;
    bool channels_last; /* the results are, the gradient of the weight too */
    bool is_transposed; /* torch's layer is, of which this is DATA, or a gradient */
} ptac_conv2d;

/*
 * Shape kinds. For conv2d_backward there are the same of both gradients.
 *
 * Kernels of 3x3 and 5x5 at stride 1, without groups and dilation, by the fewer of
 * their channels; of NHWC results from LEAST_NHWC channels on. Within a kind pixels
 * count. Then others, by the fewer channels of a group: of 1x1 kernels, of larger ones
 * with a stride, of transposed ones with one, of groups, of sequences; of volumes, and
 * among these of single ones that stock convolves itself. There multiply-adds count.
 */
enum {
    PTAC_CONV_FIRST_CHANNELS = 4, /* in, at most, of a network's first layer */
    PTAC_CONV_LEAST_NHWC = 16,
};

enum {
    PTAC_CONV_3X3_FIRST,
    PTAC_CONV_3X3_FEW, /* under 16 */
    PTAC_CONV_3X3_16,
    PTAC_CONV_3X3_32,
    PTAC_CONV_3X3_64,
    PTAC_CONV_3X3_128,
    PTAC_CONV_3X3_256,
    PTAC_CONV_3X3_512,
    PTAC_CONV_5X5_FIRST,
    PTAC_CONV_5X5_FEW, /* under 16 */
    PTAC_CONV_5X5_16,
    PTAC_CONV_5X5_64,
    PTAC_CONV_NHWC_3X3_16,
    PTAC_CONV_NHWC_3X3_32,
    PTAC_CONV_NHWC_3X3_64,
    PTAC_CONV_NHWC_3X3_128,
    PTAC_CONV_NHWC_3X3_256,
    PTAC_CONV_NHWC_3X3_512,
    PTAC_CONV_NHWC_5X5_16,
    PTAC_CONV_NHWC_5X5_64,
    PTAC_CONV_1X1_FEW, /* under 16 */
    PTAC_CONV_1X1_16,
    PTAC_CONV_1X1_32,
    PTAC_CONV_1X1_64,
    PTAC_CONV_1X1_128,
    PTAC_CONV_1X1_256,
    PTAC_CONV_1X1_POINT, /* of images of at most 4 places */
    PTAC_CONV_1X1_SMALL, /* of images under 100 places, and under 64 channels */
    PTAC_CONV_1X1_SMALL_64,
    PTAC_CONV_1X1_SMALL_256,
    PTAC_CONV_1X1_BATCH, /* of several images of up to 256 places; under 64 channels */
    PTAC_CONV_1X1_BATCH_64,
    PTAC_CONV_1X1_BATCH_256,
    PTAC_CONV_1X1_STRIDED, /* under 512 */
    PTAC_CONV_1X1_STRIDED_512,
    PTAC_CONV_1X1_STRIDED_1024,
    PTAC_CONV_STRIDED_FIRST,
    PTAC_CONV_STRIDED_FEW, /* under 16 */
    PTAC_CONV_STRIDED_16,
    PTAC_CONV_STRIDED_64,
    PTAC_CONV_STRIDED_256,
    PTAC_CONV_STRIDED_512,
    PTAC_CONV_TRANSPOSED_FEW, /* under 16 */
    PTAC_CONV_TRANSPOSED_16,
    PTAC_CONV_TRANSPOSED_64,
    PTAC_CONV_GROUPED_FEW, /* under 8 */
    PTAC_CONV_GROUPED_8,
    PTAC_CONV_GROUPED_32,
    PTAC_CONV_GROUPED_STRIDED,
    PTAC_CONV_ROW_FIRST,
    PTAC_CONV_ROW_FEW, /* under 16 */
    PTAC_CONV_ROW_16,
    PTAC_CONV_ROW_64,
    PTAC_CONV_OTHER_FEW, /* under 16 */
    PTAC_CONV_OTHER,
    PTAC_CONV_NHWC,
    PTAC_CONV_NHWC_SMALL, /* to images under 100 places, and under 256 channels */
    PTAC_CONV_NHWC_SMALL_256,
    PTAC_CONV_VOLUME_ALONE,
    PTAC_CONV_VOLUME_ALONE_64,
    PTAC_CONV_VOLUME_ALONE_128,
    PTAC_CONV_VOLUME_ALONE_1X1,
    PTAC_CONV_VOLUME_ALONE_STRIDED,
    PTAC_CONV_VOLUME_ALONE_TRANSPOSED,
    PTAC_CONV_VOLUME_FIRST,
    PTAC_CONV_VOLUME_FEW, /* under 16 */
    PTAC_CONV_VOLUME_16,
    PTAC_CONV_VOLUME_64,
    PTAC_CONV_VOLUME_1X1,
    PTAC_CONV_VOLUME_STRIDED,
    PTAC_CONV_VOLUME_TRANSPOSED,
    PTAC_CONV_VOLUME_GROUPED,
    PTAC_CONV_ANY, /* of images, not transposed: where in its own kind no row pays */
    PTAC_CONV_N_KINDS,
};

/* Bounds of what is behind such an activation. */
static inline float ptac_act_least(ptac_act act)
{
    return act == PTAC_ACT_NONE ? -INFINITY : 0;
}

static inline float ptac_act_most(ptac_act act)
{
    return act == PTAC_ACT_RELU6 ? 6 : INFINITY;
}

/* Outputs of one channel in all images: the place of a call within its kind. */
static inline int64_t ptac_conv2d_pixels(const ptac_conv2d *p)
{
    return p->n * p->out_d * p->out_h * p->out_w;
}

/* Multiply-adds of the direct sum. */
static inline int64_t ptac_conv2d_work(const ptac_conv2d *p)
{
    return ptac_conv2d_pixels(p) * p->out_channels * (p->in_channels / p->groups) *
           p->kernel_d * p->kernel_h * p->kernel_w;
}

/* Tensors of volumes have five dimensions, even where they have a single plane. */
static inline bool ptac_conv2d_is_of_volumes(const ptac_call *call)
{
    return call->inputs[0].n_dims > 4;
}

/* A norm or an activation follows, which is a pass over the result of its own else. */
static inline bool ptac_conv2d_is_merged(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->act != PTAC_ACT_NONE || call->n_inputs > 3;
}

/* What that pass takes on one thread, in nanoseconds; 0 where there is none. */
double ptac_conv2d_spared_ns(const ptac_call *call);

/* Why only a row that takes any geometry may do this call. */
ptac_reason ptac_conv2d_reason(const ptac_call *call);

/*
 * The gradient of a transposed convolution's bias: sums of grad, [n, channels, ...]
 * without gaps, over all but the channels. Blocks in float, these in double.
 */
void ptac_conv_bias_gradient(const ptac_view *grad, float *to);

/*
 * A row of convolution for the instruction set that ISA and NEEDS name. Ranks: larger
 * tiles save more, and direct convolution wants few channels.
 */
#define PTAC_CONV_ROW(id, algorithm, of_rank, of_level, takes, computes, ...)          \
    PTAC_ROW(id, algorithm "_" ISA, of_level, NEEDS, takes, computes, .rank = of_rank, \
             .spreads = true, ##__VA_ARGS__)

#endif
