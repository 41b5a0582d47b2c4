/*
 * winograd_plan.c - cutting a convolution into strips, blocks, pieces and panels.
 */
#include "ops/conv/winograd/winograd_plan.h"

enum {
    PATCH_FLOATS = 7168,   /* of a strip: 28 KiB, of a first cache of 32 or more */
    BLOCK_FLOATS = 131072, /* of a block's transformed tiles: half a mebibyte */
    LEAST_TILES = 28,
    MOST_TILES = 112,
    PAD = 16, /* floats between points, so that they do not share a cache set */
    /* Transformed weights above this are not kept; tiles that threads share then. */
    WEIGHTS_FLOATS = 1703936, /* 6.5 MiB */
    SHARED_FLOATS = 1572864,  /* 6 MiB */
    PRIVATE_FLOATS = 2031616, /* of one thread with what is shared: 7.75 MiB */
    SUMS_FLOATS = 1228800,    /* of one thread; 4.7 MiB */
    SMALL_FLOATS = 458752,    /* of all tiles with a panel's weights: 1.75 MiB */
    LEAST_PANELS = 8,
    SHARED_STRIP = 16, /* tiles: many strips of a block, for any number of threads */
    ILL_SHARE = 16,    /* of all strips one in so many may be ill-conditioned */
};

static int64_t between(int64_t least, int64_t n, int64_t most)
{
    return n < least ? least : n > most ? most : n;
}

/* n in equal parts of at most most; the size of a part. */
static int64_t part_of(int64_t n, int64_t most)
{
    return ptac_parts(n, ptac_parts(n, most));
}

/* Floats in whole cache lines. */
static int64_t lines(int64_t floats)
{
    return ptac_parts(floats, 16) * 16;
}

static int64_t groups_of(const ptac_winograd_plan *plan, int channels)
{
    return ptac_parts(channels, plan->tile.lanes);
}

/* Floats of one transformed tile of all input channels. */
static int64_t tile_floats(const ptac_winograd_plan *plan)
{
    return plan->tile.n_points * groups_of(plan, plan->conv.in_channels) *
           plan->tile.lanes;
}

/* Strips of at most most_tiles tiles whose patches fit the first cache. */
static void cut_strips(ptac_winograd_plan *plan, int64_t most_tiles)
{
    const ptac_winograd *conv = &plan->conv;
    const ptac_tile_size *tile = &plan->tile;
    const int over = tile->r - 1, pixels = PATCH_FLOATS / tile->lanes;
    const int widest = (pixels / (tile->mh + over) - over) / tile->mw;
    ptac_strips *s = &plan->strips;

    s->tiles_h = (int)ptac_parts(conv->out_h, tile->mh);
    s->tiles_w = (int)ptac_parts(conv->out_w, tile->mw);
    s->wide = (int)part_of(s->tiles_w, ptac_least(most_tiles, widest));

    const int columns = s->wide * tile->mw + over;
    const int64_t high =
        ptac_least(most_tiles / s->wide, (pixels / columns - over) / tile->mh);

    s->tall = (int)part_of(s->tiles_h, high > 1 ? high : 1);
    s->down = (int)ptac_parts(s->tiles_h, s->tall);
    s->across = (int)ptac_parts(s->tiles_w, s->wide);
    s->n = conv->n * s->down * s->across;
}

/* Floats of a strip on its way in or out. */
static int64_t patch_floats(const ptac_winograd_plan *plan)
{
    const ptac_tile_size *tile = &plan->tile;
    const int over = tile->r - 1;
    const int64_t rows = plan->strips.tall * tile->mh + over;
    const int64_t columns = plan->strips.wide * tile->mw + over;

    /* An ill-conditioned strip's outputs have a channel of its inputs behind them. */
    return lines(rows * columns * (tile->lanes + 1));
}

/* Blocks of at most most_tiles tiles out of n_strips strips. */
static void cut_blocks(ptac_winograd_plan *plan, int64_t n_strips, int64_t most_tiles)
{
    const int strip = plan->strips.tall * plan->strips.wide;

    plan->block = (int)part_of(n_strips, between(1, most_tiles / strip, most_tiles));
    plan->max_tiles = plan->block * strip;
}

static void cut_pieces(ptac_winograd_plan *plan, int n_threads, int64_t most_tiles)
{
    cut_strips(plan, most_tiles);
    plan->n_pieces = (int)ptac_least(n_threads, plan->strips.n);
    cut_blocks(plan, ptac_parts(plan->strips.n, plan->n_pieces), most_tiles);
}

/*
 * Whether all tiles and a panel's weights stay in the second cache, so that no weight
 * is used twice, and there are panels for many threads.
 */
static bool is_small(const ptac_winograd_plan *plan)
{
    const ptac_winograd *conv = &plan->conv;
    const int64_t tiles = conv->n * ptac_parts(conv->out_h, plan->tile.mh) *
                          ptac_parts(conv->out_w, plan->tile.mw);

    return plan->n_panels >= LEAST_PANELS &&
           tiles * tile_floats(plan) + plan->at.panel <= SMALL_FLOATS;
}

static void cut_outputs(ptac_winograd_plan *plan, int n_threads)
{
    const ptac_winograd *conv = &plan->conv;
    const int64_t tile = tile_floats(plan);

    plan->at.panel_step = (int64_t)conv->in_channels * 2 * plan->tile.lanes;
    plan->at.panel = plan->tile.n_points * plan->at.panel_step;
    plan->is_shared = plan->n_panels * plan->at.panel > WEIGHTS_FLOATS ||
                      (conv->y_is_nhwc && is_small(plan));
    if (plan->is_shared) {
        const int64_t product = (int64_t)plan->tile.n_points * 2 * plan->tile.lanes;
        const int64_t room = PRIVATE_FLOATS - PATCH_FLOATS - plan->at.panel;
        const int64_t most = ptac_least(SHARED_FLOATS / tile, room / (tile + product));

        cut_strips(plan, between(1, most, SHARED_STRIP));
        cut_blocks(plan, plan->strips.n, most);
        plan->n_pieces = n_threads;
    } else {
        cut_pieces(plan, n_threads,
                   between(LEAST_TILES, BLOCK_FLOATS / tile, MOST_TILES));
    }
}

/* The same for sums over tiles, the gradients of weights. */
static void cut_sums(ptac_winograd_plan *plan, int n_threads)
{
    const ptac_winograd *conv = &plan->conv;
    const int lanes = plan->tile.lanes;
    const int64_t tile = tile_floats(plan);
    int64_t sums;

    plan->at.panel_step = groups_of(plan, conv->in_channels) * lanes * 2 * lanes + PAD;
    plan->at.panel = plan->tile.n_points * plan->at.panel_step;
    sums = plan->n_panels * plan->at.panel;
    plan->n_slots = plan->n_panels;
    plan->is_shared = sums > SUMS_FLOATS || LEAST_TILES * tile > SUMS_FLOATS / 2;
    if (plan->is_shared) {
        const int64_t most = SHARED_FLOATS / tile;

        cut_strips(plan, between(1, most / n_threads, MOST_TILES));

        const int strip = plan->strips.tall * plan->strips.wide;
        const bool is_single = plan->strips.n * strip <= most;

        cut_blocks(plan, plan->strips.n, is_single ? most : most / 3);
        plan->n_pieces = (int)ptac_least(n_threads, plan->n_panels);

        const int64_t panels = ptac_parts(plan->n_panels, plan->n_pieces);

        plan->n_slots =
            is_single ? 1 : (int)between(1, SUMS_FLOATS / plan->at.panel, panels);
    } else {
        const int64_t room = PRIVATE_FLOATS - 2 * PATCH_FLOATS - sums;
        const int64_t both =
            tile + plan->tile.n_points * groups_of(plan, conv->out_channels) * lanes;

        cut_pieces(plan, n_threads,
                   ptac_least(between(LEAST_TILES, BLOCK_FLOATS / tile, MOST_TILES),
                              between(1, room / both, MOST_TILES)));
    }
}

/* Where a plan that is cut has its tiles, products and sums; see ptac_layout. */
static void lay_out(ptac_winograd_plan *plan, bool is_sum)
{
    const int lanes = plan->tile.lanes;
    const int64_t tiles = (int64_t)plan->max_tiles * lanes;
    const int64_t wide =
        is_sum && !plan->is_shared ? groups_of(plan, plan->conv.out_channels) : 2;
    ptac_layout *at = &plan->at;
    int64_t n_block, n_panels;

    at->tile_step = groups_of(plan, plan->conv.in_channels) * tiles + PAD;
    at->product_step = wide * tiles + PAD;
    at->marks_at = lines(plan->tile.n_points * at->tile_step);
    n_block = at->marks_at + lines(plan->block);
    n_panels = is_sum ? plan->n_slots : plan->is_shared ? 1 : 0;
    at->products_at = plan->is_shared ? 0 : n_block;
    at->panels_at = at->products_at + lines(plan->tile.n_points * at->product_step);
    at->patch_at = at->panels_at + lines(n_panels * at->panel);
    at->n_private = at->patch_at + patch_floats(plan);
    at->n_shared = plan->is_shared ? n_block
                   : is_sum        ? 0
                                   : lines(plan->n_panels * at->panel);
}

ptac_winograd ptac_winograd_of(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    ptac_winograd conv = {
        .x = call->inputs[0].data,
        .n = p->n,
        .in_channels = is_data ? p->out_channels : p->in_channels,
        .out_channels = is_data ? p->in_channels : p->out_channels,
        .h = is_data ? p->out_h : p->h,
        .w = is_data ? p->out_w : p->w,
        .out_h = is_data ? p->h : p->out_h,
        .out_w = is_data ? p->w : p->out_w,
        .pad_h = is_data ? p->kernel_h - 1 - p->pad_h : p->pad_h,
        .pad_w = is_data ? p->kernel_w - 1 - p->pad_w : p->pad_w,
        .is_transposed = is_data,
        .x_is_nhwc = !ptac_view_is_contiguous(&call->inputs[0]),
        .y_is_nhwc = p->channels_last,
        .weight_is_nhwc = p->channels_last,
    };

    if (p->result == PTAC_CONV_WEIGHT) {
        conv.y = call->inputs[1].data;
        conv.y_is_nhwc = !ptac_view_is_contiguous(&call->inputs[1]);
    } else {
        conv.weight_is_nhwc = !ptac_view_is_contiguous(&call->inputs[1]);
        conv.weight = call->inputs[1].data;
        conv.bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
        conv.scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
        conv.act = p->act;
        conv.with_pool = p->with_pool;
        conv.y = call->outputs[0].data;
    }
    return conv;
}

static ptac_winograd_plan cut(const ptac_call *call, ptac_tile_size tile)
{
    const ptac_conv2d *p = call->params;
    ptac_winograd_plan plan = {.conv = ptac_winograd_of(call), .tile = tile};

    plan.n_panels = (int)ptac_parts(plan.conv.out_channels, 2 * tile.lanes);
    if (p->result == PTAC_CONV_WEIGHT)
        cut_sums(&plan, call->n_threads);
    else
        cut_outputs(&plan, call->n_threads);
    return plan;
}

bool ptac_winograd_has_work_for_all(const ptac_call *call, ptac_tile_size tile)
{
    const ptac_winograd_plan plan = cut(call, tile);

    return plan.strips.n >= call->n_threads &&
           (!plan.is_shared || plan.n_panels >= call->n_threads);
}

ptac_winograd_plan ptac_winograd_plan_of(const ptac_call *call, ptac_tile_size tile)
{
    const ptac_conv2d *p = call->params;
    ptac_winograd_plan plan = cut(call, tile);

    plan.most_ill = plan.strips.n / ILL_SHARE;
    if (plan.most_ill == 0 && plan.strips.n >= ILL_SHARE / 2)
        plan.most_ill = 1;
    lay_out(&plan, p->result == PTAC_CONV_WEIGHT);
    return plan;
}
