/*
 * pool_launch.h - what launches of pooling share.
 */
#ifndef PTAC_OPS_POOL_POOL_LAUNCH_H
#define PTAC_OPS_POOL_POOL_LAUNCH_H

#include "device/cuda/launch.h"
#include "ops/pool/pool_cuda.h"
#include "ops/pool/window2d.h"

/* Kernels of one pass, by whether a thread has a pack of channels, and by dtype. */
typedef ptac_cuda_kernel ptac_pool_kernels[2][PTAC_N_DTYPES];

#define PTAC_POOL_KERNELS(unit, name)                                                  \
    {                                                                                  \
        PTAC_CUDA_KERNELS(unit, name), PTAC_CUDA_KERNELS(unit, name "_packs")          \
    }

bool ptac_pool_has_kernels(ptac_dtype dtype);

/* Whether kernels can count the elements of an image and of what it is pooled to. */
bool ptac_pool_is_counted(const ptac_image *image);

ptac_cuda_pool ptac_pool_of(const ptac_image *image, const ptac_window2d *window);

/*
 * Launches threads for n_elements, those of the pass's result. Where all tensors are
 * aligned and a multiple of 16 bytes of channels lies side by side, each has 16 bytes.
 */
ptac_status ptac_pool_launch(ptac_pool_kernels kernels, const ptac_call *call,
                             const ptac_image *image, int64_t n_elements,
                             void **parameters);

#endif
