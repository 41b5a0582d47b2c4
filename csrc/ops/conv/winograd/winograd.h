/*
 * winograd.h - minimal filtering: convolutions of stride 1 by products of transformed
 * tiles.
 *
 * A tile of mh x mw outputs of an r x r kernel takes (mh + r - 1) * (mw + r - 1)
 * multiplications a channel instead of mh * mw * r * r: 2.25 times fewer for 2x2 tiles
 * of 3x3 kernels, 3 times for 4x2, 4 times for 4x4. S. Winograd, Arithmetic Complexity
 * of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
 * Networks, 2015.
 *
 * winograd_plan.h has the words.
 */
#ifndef PTAC_OPS_CONV_WINOGRAD_WINOGRAD_H
#define PTAC_OPS_CONV_WINOGRAD_WINOGRAD_H

#include "core/host.h"
#include "ops/conv/winograd/winograd_plan.h"

/* What the template makes of a tile size; each works on [begin, end) of a plan. */
typedef struct ptac_winograd_stages {
    ptac_tile_size tile;
    const struct ptac_winograd_stages *smaller; /* what is close where these are not */
    ptac_range_fn transform_halves, run_pieces, share_tiles, run_panels;
    ptac_range_fn sum_pieces, store_pieces, sum_panels, sum_biases;
    /* By a sample: too many strips will be ill-conditioned, or images are too empty. */
    bool (*is_unsuited)(const ptac_winograd *conv, float least_filled);
} ptac_winograd_stages;

/*
 * How close tiles are, as root mean square errors divided by stock's, on images as ReLU
 * leaves them: 2x2 tiles 1.0 to 1.4 and 4x2 tiles 1.7 to 2.3 for 8 to 1024 channels,
 * always within the contract of level close; 4x4 tiles three to four, which is not. 2x2
 * tiles of 5x5 taps: 2.2 to 2.4 up to 256 channels, and above 3 from 512 on; they serve
 * up to 128. Of images that are mostly zero stock sums few terms, with less error, and
 * each of ours is in all of a tile: with one pixel in eight the figures double. Stock
 * does what would be outside the contract, see least_filled().
 */

/*
 * winograd_values.c: whether stock's sums are exact or much better than those of tiles;
 * the same for the gradient of the weight. Each call looks, and nothing is kept.
 */
bool ptac_winograd_is_better_summed(const ptac_winograd *conv,
                                    const ptac_winograd_stages *stages);
bool ptac_winograd_is_weight_better_summed(const ptac_call *call);

/* Whether only smaller tiles are close: stock has hardly an error with few terms. */
bool ptac_winograd_wants_smaller_tiles(const ptac_call *call, ptac_tile_size tile);

/* The part of the taps' places, of r x r, that lie inside the image. */
float ptac_winograd_part_inside(const ptac_winograd *conv, int r);

/* Whether tiles of this size serve a call of conv2d or its backward; and serving it. */
ptac_reason ptac_winograd_accepts(const ptac_call *call,
                                  const ptac_winograd_stages *stages);
ptac_status ptac_winograd_run(const ptac_call *call,
                              const ptac_winograd_stages *stages);
/* Of transformed weights. */
size_t ptac_winograd_kept_bytes(const ptac_call *call,
                                const ptac_winograd_stages *stages);

#endif
