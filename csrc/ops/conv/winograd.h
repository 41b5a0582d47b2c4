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
 * Words: a tile is mh x mw outputs; its points are the elements of a transformed tile.
 * A strip is a rectangle of tiles of one image, which passes through the first cache; a
 * wild one has values that must not be mixed with their neighbours, NaN among them, and
 * is convolved by the definition. A block is a run of strips, whose transformed tiles
 * stay in the second. A panel is 2 * LANES output channels.
 */
#ifndef PTAC_OPS_CONV_WINOGRAD_H
#define PTAC_OPS_CONV_WINOGRAD_H

#include "core/host.h"
#include "ops/conv/conv2d.h"

/* y = conv(x, weight), NCHW, stride 1, with the epilogue of conv2d.h. */
typedef struct ptac_winograd {
    const float *x, *weight;
    const float *bias, *scale; /* each may be NULL */
    bool with_relu, with_pool;
    float *y;
    int64_t n;
    int in_channels, out_channels;
    int h, w, out_h, out_w;
    int pad_h, pad_w;
    /*
     * The gradient of the input: weight is [in_channels][out_channels][r][r] instead of
     * [out_channels][in_channels][r][r], and its taps come in reverse.
     */
    bool is_transposed;
} ptac_winograd;

/* How a convolution is cut. All counts are of tiles, strips, floats. */
typedef struct ptac_winograd_plan {
    ptac_winograd conv;
    int mh, mw, r, lanes;
    int n_points;
    int tiles_h, tiles_w;   /* of an image */
    int strip_h, strip_w;   /* tiles of a strip, but for the last ones */
    int strips_h, strips_w; /* of an image */
    int64_t n_strips;       /* of all images */
    int block;              /* strips of a block, at most */
    int n_pieces;           /* runs of strips, one a thread */
    int max_tiles;          /* of a block */
    int64_t tile_step;      /* between the points of transformed tiles */
    int64_t marks_at;       /* behind a block's tiles: which of its strips are wild */
    int64_t n_block;        /* floats of both */
    int64_t product_step;   /* between the points of products */
    int64_t n_patch;        /* floats of a strip on its way in or out */
    int64_t n_weights;      /* floats of all transformed weights */
    int64_t n_private;      /* floats of scratch of each thread */
    int64_t n_shared;       /* floats of scratch of all */
    /* The gradient of the weights; y has the gradients of the outputs then. */
    float *grad_weight, *grad_bias; /* grad_bias may be NULL */
    int n_panels;
    int64_t grad_step;       /* between the points of transformed gradients */
    int64_t sum_step;        /* between the points of a panel's sums */
    int64_t panel_sums;      /* floats of them */
    int64_t most_ill, n_ill; /* strips; threads count up the second */
    /* With large weights threads share the tiles of one block at a time. */
    bool is_shared;
    float *tiles;
    int64_t block_start, n_in_block; /* strips */
    bool is_single;                  /* block */
    int n_slots, pass, n_passes;     /* panels of a thread whose sums are kept */
    int n_tiles;
    float *weights; /* scratch that threads share */
    float *scratch; /* n_pieces times n_private */
} ptac_winograd_plan;

enum {
    PTAC_DWARFING =
        1024, /* a pixel so many times another's size leaves it three digits */
};

/*
 * The definition is slower than stock's convolution: where more strips are wild than it
 * pays for, stock does the call. That is known for good once it is known.
 */
static inline bool ptac_winograd_is_ill_conditioned(const ptac_winograd_plan *plan)
{
    return __atomic_load_n(&plan->n_ill, __ATOMIC_RELAXED) > plan->most_ill;
}

static inline void ptac_winograd_count_ill(const ptac_winograd_plan *plan)
{
    __atomic_fetch_add((int64_t *)&plan->n_ill, 1, __ATOMIC_RELAXED);
}

typedef struct ptac_strip {
    int64_t image;
    int row, column;       /* of its first tile */
    int n_rows, n_columns; /* tiles */
} ptac_strip;

static inline ptac_strip ptac_strip_at(const ptac_winograd_plan *plan, int64_t i)
{
    const int64_t across = i % plan->strips_w, rest = i / plan->strips_w;
    ptac_strip s = {
        .image = rest / plan->strips_h,
        .row = (int)(rest % plan->strips_h) * plan->strip_h,
        .column = (int)across * plan->strip_w,
    };

    s.n_rows = plan->tiles_h - s.row;
    if (s.n_rows > plan->strip_h)
        s.n_rows = plan->strip_h;
    s.n_columns = plan->tiles_w - s.column;
    if (s.n_columns > plan->strip_w)
        s.n_columns = plan->strip_w;
    return s;
}

/* What the template makes of a tile size; each works on [begin, end) of a plan. */
typedef struct ptac_winograd_stages {
    int mh, mw, r, lanes;
    ptac_range_fn transform_halves, run_pieces, share_tiles, run_panels;
    ptac_range_fn sum_pieces, store_pieces, sum_panels, sum_biases;
    /*
     * Whether so many strips will be wild that stock had better begin at once, or the
     * images are so empty that tiles are not close; by a sample.
     */
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
 *
 * For the gradient of the weight 4x4 tiles and 5x5 taps are not close enough where it
 * has few terms. Stock sums those one by one, so that its error grows with their
 * number, and ours by blocks: at 256 terms ours is up to 3.3 times stock's, from 1024
 * on equal, above 3000 less.
 */
bool ptac_winograd_is_short_sum(const ptac_call *call);

/* Whether tiles of this size serve a call of conv2d or its backward; and serving it. */
ptac_reason ptac_winograd_accepts(const ptac_call *call,
                                  const ptac_winograd_stages *stages);
ptac_status ptac_winograd_run(const ptac_call *call,
                              const ptac_winograd_stages *stages);

#endif
