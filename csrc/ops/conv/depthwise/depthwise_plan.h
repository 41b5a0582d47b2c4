/*
 * depthwise_plan.h - how a depthwise convolution is laid out in scratch and cut.
 *
 * NCHW at stride 1 or 2 with columns of 3, 5 or 7 taps is read in place, save narrow
 * and very wide images and, with eight lanes, 7 taps at stride 2: lanes are then
 * neighbouring columns of one channel, and at the image's edges some of them are not
 * loaded. Else a strip of rows of the image is copied with its padding, so that each
 * tap of each output is a load of a whole vector from there, and lanes are
 *
 *   pixels      neighbouring columns of one channel, for NCHW: strip [row][column]. At
 *               a stride of s columns of each remainder modulo s lie together.
 *   channels    neighbouring channels, for NHWC and for narrow images: strip
 *               [row][column][lane]. Of NCHW the pixels are transposed.
 *
 * The gradient of the data is a convolution of grad_y at stride 1, between whose pixels
 * the forward stride inserts zeros, with the taps in reverse order. At stride 2 that is
 * computed in pairs, without the zeros, where grad_y is read in place.
 */
#ifndef PTAC_OPS_CONV_DEPTHWISE_DEPTHWISE_PLAN_H
#define PTAC_OPS_CONV_DEPTHWISE_DEPTHWISE_PLAN_H

#include "core/host.h"
#include "ops/conv/depthwise/depthwise.h"

/* Along one axis: output i reads packed i * stride + tap * dilation. */
typedef struct ptac_depthwise_axis {
    int size;   /* of the image that is read, */
    int out;    /* and of the result, or of grad_y for the weight's gradient */
    int kernel; /* taps */
    int stride, dilation;
    int pad; /* packed places in front of the image's first pixel; may be negative */
    int up;  /* packed places from one pixel to the next */
} ptac_depthwise_axis;

/* The image's rows or columns of an axis that lie among some packed places. */
typedef struct ptac_depthwise_span {
    int begin, end;
} ptac_depthwise_span;

typedef struct ptac_depthwise_plan {
    ptac_depthwise_axis h, w;
    ptac_depthwise_span columns; /* in a packed row */
    int64_t n;
    int channels;
    const float *image, *weight, *bias, *scale; /* bias and scale may be NULL */
    const float *grad;                          /* of y, for the weight's */
    float *result, *grad_bias;                  /* grad_bias may be NULL */
    ptac_act act;
    bool is_reversed, channels_last;

    bool by_channels; /* what lanes are */
    bool in_place;    /* lanes are pixels, which are read where the image lies */
    bool in_pairs;    /* likewise; results go in pairs, see depthwise_pairs_tpl.h */
    bool is_signal;   /* lanes are pixels, of which there is but one row */
    int lanes;
    int groups;        /* of lanes of channels, or channels */
    int width;         /* of a packed row: columns, or with its remainders floats */
    int part;          /* columns of one remainder */
    int lead;          /* floats in front, which have stores of pixels be aligned */
    int strip, strips; /* output rows of a strip, or of pairs; strips packed */
    int64_t n_units, n_pieces;
    int64_t n_packed, n_second, n_taps; /* floats, see depthwise_tpl.h */
    int64_t n_private;                  /* floats of scratch of each piece */
    float *scratch;
} ptac_depthwise_plan;

/* What the template makes for one instruction set; each works on pieces. */
typedef struct ptac_depthwise_stages {
    int lanes;
    ptac_range_fn convolve, sum_weights;
} ptac_depthwise_stages;

ptac_reason ptac_depthwise_accepts(const ptac_call *call, int lanes);
ptac_status ptac_depthwise_run(const ptac_call *call,
                               const ptac_depthwise_stages *stages);

/* Packed places along an axis that n outputs read. */
static inline int ptac_depthwise_reach(const ptac_depthwise_axis *axis, int n)
{
    return (n - 1) * axis->stride + (axis->kernel - 1) * axis->dilation + 1;
}

/* Of the n packed places from first on. */
static inline ptac_depthwise_span ptac_depthwise_span_of(
    const ptac_depthwise_axis *axis, int64_t first, int64_t n)
{
    const int64_t begin = first - axis->pad, end = begin + n;

    return (ptac_depthwise_span){
        begin <= 0 ? 0 : (int)ptac_least(axis->size, ptac_parts(begin, axis->up)),
        end <= 0 ? 0 : (int)ptac_least(axis->size, ptac_parts(end, axis->up)),
    };
}

#endif
