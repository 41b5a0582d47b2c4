/*
 * pool_launch.h - what launches of pooling share.
 */
#ifndef PTAC_OPS_POOL_POOL_LAUNCH_H
#define PTAC_OPS_POOL_POOL_LAUNCH_H

#include "ops/pool/pool_cuda.h"
#include "ops/pool/window2d.h"

/* Whether kernels can count the elements of an image and of what it is pooled to. */
bool ptac_pool_is_counted(const ptac_image *image);

ptac_cuda_pool ptac_pool_of(const ptac_image *image, const ptac_window2d *window);

/*
 * Channels that a thread takes at once: those of 16 bytes in NHWC, where they divide
 * the channels and all tensors are aligned, else one.
 */
int ptac_pool_pack(const ptac_call *call, const ptac_image *image);

/* Blocks for so many threads; each takes several elements where there are too many. */
int64_t ptac_pool_blocks(int64_t n_threads);

#endif
