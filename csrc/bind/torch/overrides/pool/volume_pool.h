/*
 * volume_pool.h - what descriptions of 3-d pooling operators share.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_POOL_VOLUME_POOL_H
#define PTAC_BIND_TORCH_OVERRIDES_POOL_VOLUME_POOL_H

#include "bind/torch/overrides/override.h"
#include "ops/pool/volume/window3d.h"

/* As ptac_pool_read(), of volumes. */
ptac_reason ptac_volume_pool_read(const ptac_arguments *args, const ptac_call *call,
                                  bool has_dilation, ptac_window2d *window,
                                  ptac_image *slab, ptac_depth *depth,
                                  ptac_outputs *outputs);
#endif
