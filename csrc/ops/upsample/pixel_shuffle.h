/*
 * pixel_shuffle.h - channels become pixels, and the way back. Level exact.
 *
 *   pixel_shuffle     x, planes * factor * factor of h x w -> y, planes of
 *                     h * factor x w * factor; element (i, j) of a square of y is of
 *                     plane i * factor + j (Shi et al. 2016, as torch.nn.PixelShuffle)
 *   pixel_unshuffle   the inverse
 *
 * Tensors are of float32 and contiguous; h and w are always those of the smaller image.
 */
#ifndef PTAC_OPS_UPSAMPLE_PIXEL_SHUFFLE_H
#define PTAC_OPS_UPSAMPLE_PIXEL_SHUFFLE_H

#include "core/host.h"
#include "core/kernel.h"

typedef struct ptac_pixel_shuffle {
    int64_t planes, h, w, factor;
} ptac_pixel_shuffle;

/* Vector rows have factors up to this one. */
enum {
    PTAC_MOST_SHUFFLED = 4,
};

ptac_reason ptac_pixel_shuffle_accepts(const ptac_call *call);

/* Threads share the rows of the smaller images, plane by plane. */
static inline void ptac_share_shuffled(const ptac_call *call, ptac_range_fn body)
{
    const ptac_pixel_shuffle *p = call->params;
    const int64_t row = p->w * p->factor * p->factor;

    ptac_parallel_for(0, p->planes * p->h, 16384 / row + 1, body, (void *)call);
}

#endif
