/*
 * direct.h - convolution of few input channels by its definition, for first layers.
 *
 * With one to four channels there is little to sum and much to write: transforms do not
 * pay, and libraries that want channels side by side spend their time on padding them.
 * Here lanes are neighbouring pixels, the image's own order.
 */
#ifndef PTAC_OPS_CONV_DIRECT_H
#define PTAC_OPS_CONV_DIRECT_H

#include "core/host.h"
#include "ops/conv/conv2d.h"

/* How a call is cut: strips of output rows of an image, runs of which are pieces. */
typedef struct ptac_direct_plan {
    const ptac_conv2d *conv;
    const float *x, *weight, *bias, *scale; /* bias and scale may be NULL */
    float *y;
    const float *grad;              /* of y */
    float *grad_weight, *grad_bias; /* grad_bias may be NULL */
    int lanes, n_taps;
    int strip, strips; /* rows of a strip, strips of an image */
    int width;         /* of a padded row */
    int64_t n_strips;
    int n_pieces;
    int64_t n_rows;    /* floats of a padded strip */
    int64_t n_private; /* floats of scratch of each piece */
    float *scratch;
    double *sums; /* of each piece: [out channel][tap], then [out channel] */
} ptac_direct_plan;

/* What the template makes of a kernel size; each works on pieces [begin, end). */
typedef struct ptac_direct_stages {
    int lanes;
    ptac_range_fn forward, sum_weights;
} ptac_direct_stages;

ptac_reason ptac_direct_accepts(const ptac_call *call);
ptac_status ptac_direct_run(const ptac_call *call, const ptac_direct_stages *stages);

#endif
