/*
 * window2d.c - reading an image batch out of a tensor's sizes and strides.
 */
#include "ops/pool/window2d.h"

ptac_reason ptac_image_of(const ptac_view *input, ptac_image *image)
{
    const int64_t *sizes = input->sizes;

    if (input->n_dims != 3 && input->n_dims != 4)
        return PTAC_SHAPE;
    if (input->n_elements == 0)
        return PTAC_EMPTY;

    const bool batched = input->n_dims == 4;

    image->n = batched ? sizes[0] : 1;
    image->channels = sizes[batched];
    image->h = sizes[batched + 1];
    image->w = sizes[batched + 2];
    image->channels_last = ptac_view_suggests_channels_last(input);
    /* Kernels count positions inside one image in 32 bits. */
    if (image->h >= INT32_MAX / image->w)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}
