/*
 * winograd_plan.h - how a convolution by transformed tiles is cut.
 *
 * Words: a tile is mh x mw outputs; its points are the elements of a transformed tile.
 * A strip is a rectangle of tiles of one image, which passes through the first cache.
 * An ill-conditioned strip has values that must not be mixed with their neighbours, NaN
 * among them; it is convolved by the definition. A block is a run of strips, whose
 * transformed tiles stay in the second cache. A panel is 2 * LANES output channels.
 */
#ifndef PTAC_OPS_CONV_WINOGRAD_WINOGRAD_PLAN_H
#define PTAC_OPS_CONV_WINOGRAD_WINOGRAD_PLAN_H

#include "ops/conv/conv2d.h"

/* Outputs of a tile, taps of a kernel's side, floats of a vector; the tile's points. */
typedef struct ptac_tile_size {
    int mh, mw, r, lanes;
    int nh, nw, n_points;
} ptac_tile_size;

#define PTAC_TILE_SIZE(mh, mw, r, lanes)                                               \
    {                                                                                  \
        mh, mw, r, lanes, mh + r - 1, mw + r - 1, (mh + r - 1) * (mw + r - 1)          \
    }

/* y = conv(x, weight), stride 1, with the epilogue of conv2d.h. */
typedef struct ptac_winograd {
    const float *x, *weight;
    const float *bias, *scale; /* each may be NULL */
    ptac_act act;
    bool with_pool;
    float *y; /* only read where the weight's gradient is asked for: y's gradient */
    int64_t n;
    int in_channels, out_channels;
    int h, w, out_h, out_w;
    int pad_h, pad_w;
    /*
     * The gradient of the input: weight is [in_channels][out_channels][r][r] instead of
     * [out_channels][in_channels][r][r], and its taps come in reverse.
     */
    bool is_transposed;
    /* Which lie as channels_last, the weights as [][r][r][]; the others contiguous. */
    bool x_is_nhwc, y_is_nhwc, weight_is_nhwc;
} ptac_winograd;

/* Floats from a pixel to the next one in its row, and from a channel to the next. */
typedef struct ptac_image_steps {
    int64_t pixel, channel;
} ptac_image_steps;

static inline ptac_image_steps ptac_image_steps_of(bool is_nhwc, int channels,
                                                   int64_t plane)
{
    return is_nhwc ? (ptac_image_steps){channels, 1} : (ptac_image_steps){1, plane};
}

/* Tiles, and the strips that they are cut into. */
typedef struct ptac_strips {
    int tiles_h, tiles_w; /* of an image */
    int tall, wide;       /* tiles of a strip, but for the last ones */
    int down, across;     /* strips of an image */
    int64_t n;            /* of all images */
} ptac_strips;

/*
 * Where things lie, in floats. A thread's scratch holds at 0 the transformed tiles of a
 * block, unless threads share them; behind these marks of its ill-conditioned strips.
 */
typedef struct ptac_layout {
    int64_t tile_step;    /* between the points of transformed tiles, */
    int64_t product_step; /* of products or of transformed gradients of outputs, */
    int64_t panel_step;   /* of a panel's weights, or of its sums */
    int64_t panel;        /* all points of a panel */
    int64_t marks_at;     /* behind the tiles, whoever has them */
    int64_t patch_at, products_at, panels_at; /* in a thread's scratch */
    int64_t n_private, n_shared; /* of each thread's scratch, and of what all share */
} ptac_layout;

/* With large weights threads share the tiles of one block at a time. */
typedef struct ptac_turn {
    int64_t first, last; /* strips of the block */
    int n_tiles;
    int pass; /* over all blocks: n_slots panels of each thread at a time */
} ptac_turn;

typedef struct ptac_winograd_plan {
    ptac_winograd conv;
    ptac_tile_size tile;
    ptac_strips strips;
    int block, max_tiles; /* strips and tiles of a block, at most */
    int n_pieces;         /* what threads share out: runs of strips, or of panels */
    int n_panels;
    bool is_shared; /* threads share tiles, and each has panels of its own */
    int n_slots;    /* panels whose sums a thread keeps; 1 where a block holds all */
    ptac_layout at;
    ptac_turn turn;
    float *grad_weight, *grad_bias; /* asked for, or NULL */
    int64_t most_ill, n_ill;        /* strips; threads count up the second */
    float *shared, *scratch;        /* the second is n_pieces times n_private */
    float *kept;                    /* all panels of weights that stay, or NULL */
    bool is_kept_ready;
} ptac_winograd_plan;

enum {
    PTAC_DWARFING = 1024, /* so many times a pixel's size leaves it three digits */
};

/* A call as a convolution of stride 1, a gradient of the data turned round. */
ptac_winograd ptac_winograd_of(const ptac_call *call);

/* Cut a call; scratch and gradients are left to whoever runs it. */
ptac_winograd_plan ptac_winograd_plan_of(const ptac_call *call, ptac_tile_size tile);

/*
 * Whether there are strips, and panels where threads have their own, for more threads
 * than tables know of. Stock cuts finer where there is little to do.
 */
bool ptac_winograd_has_work_for_all(const ptac_call *call, ptac_tile_size tile);

/* Whether one block has all strips: panels are then summed one after the other. */
static inline bool ptac_winograd_is_single(const ptac_winograd_plan *plan)
{
    return plan->block >= plan->strips.n;
}

/*
 * The definition is slower than stock's convolution: where more strips are
 * ill-conditioned than it pays for, stock does the call. That is known for good once it
 * is known.
 */
static inline bool ptac_winograd_is_ill_conditioned(const ptac_winograd_plan *plan)
{
    return __atomic_load_n(&plan->n_ill, __ATOMIC_RELAXED) > plan->most_ill;
}

static inline void ptac_winograd_count_ill(const ptac_winograd_plan *plan)
{
    __atomic_fetch_add((int64_t *)&plan->n_ill, 1, __ATOMIC_RELAXED);
}

typedef struct ptac_tile_strip {
    int64_t image;
    int row, column;       /* of its first tile */
    int n_rows, n_columns; /* tiles */
} ptac_tile_strip;

static inline ptac_tile_strip ptac_tile_strip_at(const ptac_winograd_plan *plan,
                                                 int64_t i)
{
    const ptac_strips *strips = &plan->strips;
    const int64_t across = i % strips->across, rest = i / strips->across;
    ptac_tile_strip s = {
        .image = rest / strips->down,
        .row = (int)(rest % strips->down) * strips->tall,
        .column = (int)across * strips->wide,
    };

    s.n_rows = strips->tiles_h - s.row;
    if (s.n_rows > strips->tall)
        s.n_rows = strips->tall;
    s.n_columns = strips->tiles_w - s.column;
    if (s.n_columns > strips->wide)
        s.n_columns = strips->wide;
    return s;
}

#endif
