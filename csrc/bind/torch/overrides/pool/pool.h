/*
 * pool.h - what descriptions of pooling operators share.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_POOL_POOL_H
#define PTAC_BIND_TORCH_OVERRIDES_POOL_POOL_H

#include "bind/torch/overrides/override.h"
#include "ops/pool/window2d.h"

/*
 * Fill in the window, the pooled image of self and the output, or say why stock must
 * look at the call. The options begin with kernel, stride and padding, then dilation
 * where there is one, then ceil_mode.
 */
ptac_reason ptac_pool_read(const ptac_arguments *args, const ptac_call *call,
                           bool has_dilation, ptac_window2d *window, ptac_image *image,
                           ptac_outputs *outputs);

/*
 * The output. Forward gives it the sizes of self but for the last two. Backward makes
 * it like self: all inputs must have the pooled sizes; the first has self's dtype and a
 * second holds indices.
 */
ptac_reason ptac_pool_output(const ptac_arguments *args, const ptac_call *call,
                             const ptac_image *image, ptac_outputs *outputs);

/* The same of volumes, of which n_slabs slabs come out; of images where it is 0. */
ptac_reason ptac_pool_output_of(const ptac_arguments *args, const ptac_call *call,
                                const ptac_image *image, int64_t n_slabs,
                                ptac_outputs *outputs);

#endif
