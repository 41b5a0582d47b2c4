/*
 * upsample.h - images enlarged to the nearest element, or between four.
 *
 *   upsample_nearest2d            x -> y; an output is the element at its index times
 *                                 the axis's ratio, rounded down. Level exact.
 *   upsample_nearest2d_backward   grad_y -> grad_x; an element's gradients are added to
 *                                 0 row by row. Level exact.
 *   upsample_bilinear2d           x -> y; the two elements of each of two rows that an
 *                                 output lies between, with weights, and then the rows.
 *                                 Level close: ATen's order of the sums is its
 *                                 compiler's. Indices and weights are ATen's.
 *   upsample_bilinear2d_backward  grad_y -> grad_x; each gradient is added to its four
 *                                 elements in turn, upper row first. Level exact.
 *
 * Tensors are of float32, NCHW or NHWC. No axis becomes shorter, and no ratio is above
 * 1: what ATen makes of others goes to stock.
 *
 * ATen has two kernels for each direction (UpSampleKernel.cpp). One computes a pixel's
 * channels together; it takes images in NHWC of more than three channels, and of any
 * layout where height and width of the result are 128 together at most. The other takes
 * the rest, axis after axis. ptac_upsample.by_pixel says which one a call would reach.
 */
#ifndef PTAC_OPS_UPSAMPLE_UPSAMPLE_H
#define PTAC_OPS_UPSAMPLE_UPSAMPLE_H

#include "core/host.h"
#include "core/kernel.h"

#include <math.h>

typedef struct ptac_upsample_axis {
    int64_t size, outputs;
    float ratio;  /* elements an output */
    bool is_copy; /* bilinear: an output lies on one element, whatever the ratio */
} ptac_upsample_axis;

typedef struct ptac_upsample {
    int64_t n, channels;
    ptac_upsample_axis h, w;
    bool channels_last;
    bool by_pixel; /* as ATen's kernel for channels finds indices */
    bool align_corners;
    bool is_fused; /* as the host's operators compute where outputs lie */
} ptac_upsample;

/* Sizes and ratio that rows can do: positions fit into 32 bits, and into a float. */
static inline bool ptac_upsample_fits(const ptac_upsample_axis *axis)
{
    return axis->size >= 1 && axis->size <= axis->outputs && axis->outputs < 1 << 24 &&
           axis->ratio >= 0 && axis->ratio <= 1;
}

/* ATen's compute_scales_value(); a scale that is not above 0 is not given. */
static inline float ptac_upsample_ratio(int64_t size, int64_t outputs, double scale)
{
    return scale > 0 ? (float)(1 / scale) : (float)size / (float)outputs;
}

/* ATen looks for factors 1 and 2 before it looks at the scale, in some kernels. */
static inline ptac_upsample_axis ptac_nearest_axis(int64_t size, int64_t outputs,
                                                   double scale, bool sees_factors)
{
    ptac_upsample_axis axis = {size, outputs, 0, false};

    axis.ratio = ptac_upsample_ratio(size, outputs, scale);
    if (sees_factors && outputs == size)
        axis.ratio = 1;
    else if (sees_factors && outputs == 2 * size)
        axis.ratio = 0.5f;
    return axis;
}

static inline ptac_upsample_axis ptac_linear_axis(int64_t size, int64_t outputs,
                                                  double scale, const ptac_upsample *p)
{
    ptac_upsample_axis axis = {size, outputs, 0, size == outputs};

    if (!p->align_corners)
        axis.ratio = ptac_upsample_ratio(size, outputs, scale);
    else if (outputs > 1)
        axis.ratio = (float)(size - 1) / (float)(outputs - 1);
    return axis;
}

static inline int64_t ptac_nearest_index(const ptac_upsample_axis *axis, int64_t output)
{
    return ptac_least((int64_t)((float)output * axis->ratio), axis->size - 1);
}

/* The two elements that an output lies between, and their weights. */
typedef struct ptac_linear_place {
    int32_t first, second;
    float of_first, of_second;
} ptac_linear_place;

static inline ptac_linear_place ptac_linear_at(const ptac_upsample *p,
                                               const ptac_upsample_axis *axis,
                                               int64_t output)
{
    ptac_linear_place at = {(int32_t)output, (int32_t)output, 1, 0};
    const float middle = (float)output + 0.5f;
    float real;

    if (axis->is_copy)
        return at;
    if (p->align_corners)
        real = axis->ratio * (float)output;
    else
        real = p->is_fused ? fmaf(axis->ratio, middle, -0.5f)
                           : axis->ratio * middle - 0.5f;
    if (real < 0)
        real = 0;
    at.first = (int32_t)ptac_least((int64_t)real, axis->size - 1);
    at.second = at.first + (at.first < axis->size - 1);
    at.of_second = fminf(real - (float)at.first, 1);
    at.of_first = 1 - at.of_second;
    return at;
}

/* What every row accepts. */
ptac_reason ptac_upsample_accepts(const ptac_call *call);

/* The definitions: what vector rows do not do better they leave to them. */
ptac_status ptac_nearest2d_by_definition(const ptac_call *call);
ptac_status ptac_nearest2d_backward_by_definition(const ptac_call *call);
ptac_status ptac_bilinear2d_by_definition(const ptac_call *call);
ptac_status ptac_bilinear2d_backward_by_definition(const ptac_call *call);

/* Threads share n rows, which cost so many elements together. */
static inline void ptac_share_rows(int64_t n, int64_t elements, ptac_range_fn body,
                                   void *job)
{
    ptac_parallel_for(0, n, 16384 / (elements / n + 1) + 1, body, job);
}

#endif
