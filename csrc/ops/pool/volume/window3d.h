/*
 * window3d.h - the geometry that all 3-d pooling shares.
 *
 * A volume is pooled as images are, slab by slab, with a third axis over the slabs:
 * what window2d.h says of an image holds of each slab. Planes are volumes of one
 * channel.
 */
#ifndef PTAC_OPS_POOL_VOLUME_WINDOW3D_H
#define PTAC_OPS_POOL_VOLUME_WINDOW3D_H

#include "ops/pool/window2d.h"

/* The axis over slabs: its window, how many slabs there are, and how many come out. */
typedef struct ptac_depth {
    ptac_window window;
    int64_t size, outputs;
} ptac_depth;

/*
 * Read CDHW or NCDHW sizes and the layout out of a view, as ptac_image_of() does. Stock
 * tells the layout of volumes without a batch in ways of its own.
 */
static inline ptac_reason ptac_volume_of(const ptac_view *input, ptac_image *slab,
                                         ptac_depth *depth)
{
    const int64_t *sizes = input->sizes;
    const bool batched = input->n_dims == 5;

    if (input->n_dims != 4 && !batched)
        return PTAC_SHAPE;
    if (input->n_elements == 0)
        return PTAC_EMPTY;
    if (!batched && !ptac_view_is_contiguous(input))
        return PTAC_LAYOUT;
    slab->n = batched ? sizes[0] : 1;
    slab->channels = sizes[batched];
    depth->size = sizes[batched + 1];
    slab->h = sizes[batched + 2];
    slab->w = sizes[batched + 3];
    slab->channels_last = batched && ptac_view_suggests_channels_last(input);
    /* Kernels count positions inside one volume in 32 bits. */
    if (slab->h >= INT32_MAX / slab->w ||
        depth->size >= INT32_MAX / (slab->h * slab->w))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* Fill in what the windows make of a volume, as ptac_window2d_fit() does. */
static inline ptac_reason ptac_window3d_fit(const ptac_window2d *window,
                                            ptac_image *slab, ptac_depth *depth)
{
    const ptac_reason why = ptac_window2d_fit(window, slab);

    if (why)
        return why;
    if (!ptac_window_is_valid(&depth->window))
        return PTAC_ARGUMENT;
    depth->outputs =
        ptac_window_outputs(&depth->window, depth->size, window->ceil_mode);
    if (depth->outputs < 1)
        return PTAC_ARGUMENT;
    return ptac_window_always_hits(&depth->window, depth->size, depth->outputs)
               ? PTAC_TAKE
               : PTAC_SHAPE;
}

/* Positions of a plane, and outputs. */
static inline int64_t ptac_volume_positions(const ptac_image *slab,
                                            const ptac_depth *depth)
{
    return depth->size * slab->h * slab->w;
}

static inline int64_t ptac_volume_outputs(const ptac_image *slab,
                                          const ptac_depth *depth)
{
    return depth->outputs * slab->out_h * slab->out_w;
}

/* Threads share the planes of a batch. */
static inline void ptac_share_volumes(const ptac_image *slab, const ptac_depth *depth,
                                      ptac_range_fn body, void *context)
{
    ptac_share_out(slab->n * slab->channels, ptac_volume_positions(slab, depth), body,
                   context);
}

#endif
