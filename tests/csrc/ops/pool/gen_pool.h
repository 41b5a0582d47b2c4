/*
 * gen_pool.h - random image batches and windows, for all 2-d pooling.
 */
#ifndef PTAC_TESTS_GEN_POOL_H
#define PTAC_TESTS_GEN_POOL_H

#include "checkrows.h"
#include "ops/pool/window2d.h"

/* An image batch as a tensor: CHW or NCHW, dense in the layout that torch guesses. */
typedef struct random_image {
    int n_dims;
    int64_t sizes[4], out_sizes[4];
    ptac_dtype dtype;
    bool channels_last;
} random_image;

/*
 * A window and an image that it fits on, by the checks that bind makes. Without
 * dilation for operators that have none.
 */
void random_pool(rng *r, random_image *x, ptac_window2d *window, ptac_image *image,
                 bool may_dilate);

/*
 * An image and what adaptive pooling makes of it: an even share, an odd one, more than
 * there is. Channels are often a multiple of a cache line's elements: in NHWC rows take
 * no others.
 */
void random_adaptive_pool(rng *r, random_image *x, ptac_image *image);

/*
 * Image i of those by which work is counted, with its window: halves of an image, and
 * the overlapping 3x3 of ResNet's stem, in both layouts. False: there are no more.
 */
bool typical_pool(int i, random_image *x, ptac_window2d *window, ptac_image *image);

/* Positions of all windows that lie in the image. */
int64_t pool_taps(const ptac_window2d *window, const ptac_image *image);

/* The window and the image in words, into c->note. */
void note_pool(test_call *c, const random_image *x, const ptac_window2d *window,
               const ptac_image *image);

#endif
