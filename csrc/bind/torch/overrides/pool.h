/*
 * pool.h - what descriptions of pooling operators share.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_POOL_H
#define PTAC_BIND_TORCH_OVERRIDES_POOL_H

#include "bind/torch/overrides/override.h"
#include "ops/pool/window2d.h"

/*
 * Fill in the window and the pooled image of x, or say why stock must look at the call.
 * The arguments from first on are kernel, stride and padding, then dilation where there
 * is one, then ceil_mode.
 */
ptac_reason ptac_read_window(const ptac_arguments *args, int first, bool has_dilation,
                             const ptac_view *x, ptac_window2d *window,
                             ptac_image *image);

/* Forward: outputs have the sizes of x but for the last two. */
ptac_reason ptac_pooled(const ptac_view *x, const ptac_image *image,
                        ptac_output *output);

/*
 * Backward: the output is like x. All inputs must have the pooled sizes; the first has
 * x's dtype and a second holds indices.
 */
ptac_reason ptac_pool_gradient(const ptac_call *call, const ptac_view *x,
                               const ptac_image *image, ptac_output *output);

#endif
