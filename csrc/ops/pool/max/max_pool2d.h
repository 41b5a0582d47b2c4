/*
 * max_pool2d.h - 2-d max pooling with indices, forward and backward. Level exact.
 *
 * Forward: inputs x; outputs y of x's dtype and layout, and int64 indices into the
 * h*w positions of each plane. A later tap wins when it is greater or NaN, so ties go
 * to the first tap and NaN to the last, as in ATen's max_pool2d_with_indices; whose
 * kernel for NHWC on CUDA begins with index 0, and keeps it for taps of -infinity.
 *
 * Backward: inputs grad_y, indices, x's layout; output grad_x. A position's gradients
 * add up in the order of the outputs that chose it, starting from +0.
 */
#ifndef PTAC_OPS_POOL_MAX_MAX_POOL2D_H
#define PTAC_OPS_POOL_MAX_MAX_POOL2D_H

#include "ops/pool/window2d.h"

typedef struct ptac_max_pool2d {
    ptac_window2d window;
    ptac_image image; /* out_h and out_w filled in */
} ptac_max_pool2d;

/* Shape kinds, for calibration. */
enum {
    PTAC_MAX_POOL2D_STRIDED,       /* NCHW, stride 1 or 2 along the rows */
    PTAC_MAX_POOL2D_FAR,           /* NCHW, larger strides */
    PTAC_MAX_POOL2D_CHANNELS_LAST, /* NHWC */
};

/* Backward kinds: windows of 2x2 side by side, others, and NHWC. */
enum {
    PTAC_MAX_POOL2D_BACKWARD_TILED,
    PTAC_MAX_POOL2D_BACKWARD_ANY,
    PTAC_MAX_POOL2D_BACKWARD_CHANNELS_LAST,
};

/* What every row accepts, most in both directions: the types of elements.h. */
ptac_reason ptac_max_pool2d_accepts(const ptac_call *call);

/* Windows of 2x2 side by side, none of which hangs over the image's edge. */
static inline bool ptac_max_pool2d_is_tiled(const ptac_max_pool2d *p)
{
    const ptac_window *h = &p->window.h, *w = &p->window.w;

    return h->kernel == 2 && w->kernel == 2 && h->stride == 2 && w->stride == 2 &&
           h->padding == 0 && w->padding == 0 && h->dilation == 1 && w->dilation == 1 &&
           2 * p->image.out_h <= p->image.h && 2 * p->image.out_w <= p->image.w;
}

/*
 * What the rows of the gradient share. Indices come from the caller, who may have made
 * them up: a row checks each before it writes, leaves out -1 as stock does, and gives
 * the call back when one lies outside its plane.
 */

/*
 * A run over planes, or over images with their channels next to each other, and what
 * its threads have found.
 */
typedef struct ptac_scatter {
    const ptac_call *call;
    int64_t n_units, n_channels;
    int64_t n_in, n_out; /* positions of a plane, and outputs */
    int64_t n_found;     /* outputs whose index is a position of their window */
    bool out_of_range;
} ptac_scatter;

/* Of images; or of volumes, by the image of a slab and the number of slabs. */
static inline ptac_scatter ptac_scatter_of(const ptac_call *call,
                                           const ptac_image *image, int64_t n_slabs,
                                           int64_t out_slabs)
{
    const bool is_nhwc = image->channels_last;

    return (ptac_scatter){
        .call = call,
        .n_units = is_nhwc ? image->n : image->n * image->channels,
        .n_channels = is_nhwc ? image->channels : 1,
        .n_in = n_slabs * image->h * image->w,
        .n_out = out_slabs * image->out_h * image->out_w,
    };
}

/* The definition; PTAC_UNSUPPORTED where an index lies outside of its plane. */
ptac_status ptac_scatter_all(ptac_scatter *job);

#endif
