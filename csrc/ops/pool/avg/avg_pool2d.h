/*
 * avg_pool2d.h - 2-d average pooling, with given windows or adaptive. Level exact.
 *
 * Forward: input x; output y of x's dtype and layout. A window's positions inside the
 * image are added up row by row in float or double, starting from +0, and the sum is
 * divided, as in ATen's avg_pool2d and _adaptive_avg_pool2d.
 *
 * Backward: inputs grad_y, x's layout; output grad_x. Each gradient is divided first;
 * a position's add up in the order of the outputs, starting from +0. All of it is
 * rounded to the dtype at each step.
 *
 * On CUDA the arithmetic is that of ATen's AveragePool2d.cu and
 * AdaptiveAveragePooling.cu. Means of adaptive NHWC are multiplied by the reciprocal of
 * the number of positions, rounded to the dtype. Gradients' shares are rounded to the
 * dtype, and add up in float or double: adaptive ones are divided by the width and then
 * by the height; in NHWC multiplied by the product of both reciprocals, all rounded,
 * and added in one operation. A sum of several adaptive shares is not stock's, which in
 * NCHW adds them up in any order, and in NHWC rounds each sum to the dtype.
 */
#ifndef PTAC_OPS_POOL_AVG_AVG_POOL2D_H
#define PTAC_OPS_POOL_AVG_AVG_POOL2D_H

#include "ops/pool/window2d.h"

typedef struct ptac_avg_pool2d {
    ptac_window2d window; /* undilated; of adaptive pooling where it is_regular */
    ptac_image image;
    int64_t divisor; /* 0: as many as the window has positions */
    bool count_include_pad;
    bool is_adaptive;
    bool is_regular; /* all windows have one size and distance, given by window */
} ptac_avg_pool2d;

/* Adaptive pooling of an image to its out_h by out_w. */
void ptac_avg_pool2d_adapt(ptac_avg_pool2d *p);

/* Shape kinds of both directions, for calibration. */
enum {
    PTAC_AVG_POOL2D_NCHW,          /* windows at most two apart along the rows */
    PTAC_AVG_POOL2D_FAR,           /* farther, or irregular */
    PTAC_AVG_POOL2D_NARROW,        /* less than four outputs a row */
    PTAC_AVG_POOL2D_CHANNELS_LAST, /* NHWC */
};

/* A window along one axis: [begin, end) in the image, n_padded with its padding. */
typedef struct ptac_extent {
    int64_t begin, end, n_padded;
} ptac_extent;

static inline ptac_extent ptac_avg_extent(const ptac_avg_pool2d *p,
                                          const ptac_window *axis, int64_t output,
                                          int64_t size, int64_t n_outputs)
{
    int64_t begin, end;

    if (!p->is_regular) {
        begin = output * size / n_outputs;
        end = ((output + 1) * size - 1) / n_outputs + 1;
        return (ptac_extent){begin, end, end - begin};
    }
    begin = output * axis->stride - axis->padding;
    end = begin + axis->kernel;
    if (end > size + axis->padding)
        end = size + axis->padding;
    return (ptac_extent){begin < 0 ? 0 : begin, end > size ? size : end, end - begin};
}

static inline ptac_extent ptac_avg_extent_h(const ptac_avg_pool2d *p, int64_t oh)
{
    return ptac_avg_extent(p, &p->window.h, oh, p->image.h, p->image.out_h);
}

static inline ptac_extent ptac_avg_extent_w(const ptac_avg_pool2d *p, int64_t ow)
{
    return ptac_avg_extent(p, &p->window.w, ow, p->image.w, p->image.out_w);
}

/* How many positions of an axis the divisor counts. */
static inline int64_t ptac_avg_counted(const ptac_avg_pool2d *p,
                                       const ptac_extent *axis)
{
    return p->count_include_pad ? axis->n_padded : axis->end - axis->begin;
}

/*
 * What a window is divided by, one after the other: as ATen does, adaptive windows in
 * NCHW by their height and then by their width.
 */
typedef struct ptac_divisors {
    int64_t first, second;
} ptac_divisors;

static inline ptac_divisors ptac_avg_divisors(const ptac_avg_pool2d *p,
                                              const ptac_extent *h,
                                              const ptac_extent *w)
{
    const int64_t n_h = ptac_avg_counted(p, h), n_w = ptac_avg_counted(p, w);

    if (p->is_adaptive && !p->image.channels_last)
        return (ptac_divisors){n_h, n_w};
    return (ptac_divisors){p->divisor ? p->divisor : n_h * n_w, 1};
}

int ptac_avg_pool2d_kind(const ptac_avg_pool2d *p);

/* What every row accepts. */
ptac_reason ptac_avg_pool2d_accepts(const ptac_call *call);

/* The definition: what vector rows do not do better themselves they leave to it. */
ptac_status ptac_avg_pool2d_by_definition(const ptac_call *call);
ptac_status ptac_avg_pool2d_backward_by_definition(const ptac_call *call);

#endif
