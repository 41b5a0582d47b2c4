/*
 * pool_kernel.h - where the elements of an image batch lie, for kernels of pooling.
 */
#ifndef PTAC_OPS_POOL_POOL_KERNEL_H
#define PTAC_OPS_POOL_POOL_KERNEL_H

#include "device/cuda/kernel.h"
#include "ops/pool/pool_cuda.h"

/* An element's place: its plane's first element, its row and column. */
struct ptac_pool_element {
    int plane, row, column;
};

/* Element i of a batch of planes of height x width; planes are image planes apart. */
PTAC_DEVICE ptac_pool_element ptac_pool_place(const ptac_cuda_pool &p, ptac_u32 i,
                                              const ptac_divisor &height,
                                              const ptac_divisor &width, ptac_u32 image)
{
    const ptac_u32 pixel = p.channels_last ? ptac_quotient(i, p.channels) : i;
    const ptac_u32 row = ptac_quotient(pixel, width), of = ptac_quotient(row, height);
    const ptac_u32 channels = p.channels_last ? p.channels.by : 1;

    return {(int)(of * image * channels + (i - pixel * channels)),
            (int)(row - of * height.by), (int)(pixel - row * width.by)};
}

/* From one pixel of a plane to the next, in elements. */
PTAC_DEVICE int ptac_pool_step(const ptac_cuda_pool &p)
{
    return p.channels_last ? (int)p.channels.by : 1;
}

/* Outputs [first, last) of one axis whose windows may reach over a position. */
PTAC_DEVICE int ptac_first_output(const ptac_cuda_window &axis, int position)
{
    const int at = position + axis.padding,
              reach = axis.dilation * (axis.kernel - 1) + 1;

    return at < reach ? 0 : (int)ptac_quotient((ptac_u32)(at - reach), axis.stride) + 1;
}

PTAC_DEVICE int ptac_last_output(const ptac_cuda_window &axis, int position,
                                 int n_outputs)
{
    const int last =
        (int)ptac_quotient((ptac_u32)(position + axis.padding), axis.stride) + 1;

    return last < n_outputs ? last : n_outputs;
}

#endif
