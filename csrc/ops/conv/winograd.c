/*
 * winograd.c - how a convolution is cut into strips, blocks and pieces, and run.
 */
#include "ops/conv/winograd.h"

#include "core/scratch.h"

#include <string.h>

enum {
    WHOLE_BITS = 12,       /* of the integers that weights are looked at for */
    PATCH_FLOATS = 7168,   /* of a strip: 28 KiB, of a first cache of 32 or more */
    BLOCK_FLOATS = 131072, /* of a block's transformed tiles: half a mebibyte */
    LEAST_TILES = 28,
    MOST_TILES = 112,
    MOST_SIZE = 1 << 20,
    MOST_CHANNELS = 1024, /* or blocks get too small for their weights */
    LONG_SUM = 1024,
    LONG_SUM_OF_5X5 = 4096,
    LEAST_OF_5X5 = 4, /* summed channels */
    MOST_OF_5X5 = 128,
    PAD = 16, /* floats between points, so that they do not share a cache set */
    /* Transformed weights above this are not kept; tiles that threads share then. */
    WEIGHTS_FLOATS = 1703936, /* 6.5 MiB */
    SHARED_FLOATS = 1572864,  /* 6 MiB */
    PRIVATE_FLOATS = 2031616, /* of one thread with what is shared: 7.75 MiB */
    SUMS_FLOATS = 1228800,    /* of one thread; 4.7 MiB */
    SHARED_STRIP = 16, /* tiles: many strips of a block, for any number of threads */
    WILD_SHARE = 16,   /* of all strips one in so many may be wild */
    FEW_THREADS = 2,   /* that tables were measured with */
};

/* Fewer multiplications saved do not pay for the transforms. */
#define LEAST_GAIN 1.6

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* n in equal parts of at most most; the size of a part. */
static int64_t part_of(int64_t n, int64_t most)
{
    const int64_t parts = (n + most - 1) / most;

    return (n + parts - 1) / parts;
}

static int64_t n_parts(int64_t n, int64_t part)
{
    return (n + part - 1) / part;
}

/* Floats in whole cache lines. */
static int64_t lines(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

/* Strips of at most most_tiles tiles whose patches fit the first cache. */
static void cut_strips(ptac_winograd_plan *plan, int64_t most_tiles)
{
    const ptac_winograd *conv = &plan->conv;
    const int over = plan->r - 1;
    const int pixels = PATCH_FLOATS / plan->lanes;
    int columns = pixels / (plan->mh + over);

    plan->tiles_h = (int)n_parts(conv->out_h, plan->mh);
    plan->tiles_w = (int)n_parts(conv->out_w, plan->mw);
    plan->strip_w =
        (int)part_of(plan->tiles_w, least(most_tiles, (columns - over) / plan->mw));
    columns = plan->strip_w * plan->mw + over;

    const int64_t high =
        least(most_tiles / plan->strip_w, (pixels / columns - over) / plan->mh);

    plan->strip_h = (int)part_of(plan->tiles_h, high > 1 ? high : 1);
    plan->strips_h = (int)n_parts(plan->tiles_h, plan->strip_h);
    plan->strips_w = (int)n_parts(plan->tiles_w, plan->strip_w);
    plan->n_strips = conv->n * plan->strips_h * plan->strips_w;
    /* A wild strip's outputs have one channel of its inputs behind them. */
    plan->n_patch =
        lines((int64_t)(plan->strip_h * plan->mh + over) * columns * (plan->lanes + 1));
}

/* Blocks of at most most_tiles tiles out of n_strips strips, and the tiles' layout. */
static void cut_blocks(ptac_winograd_plan *plan, int64_t n_strips, int64_t most_tiles)
{
    const int strip = plan->strip_h * plan->strip_w, lanes = plan->lanes;
    const int64_t most = most_tiles / strip;

    plan->block = (int)part_of(n_strips, most > 1 ? most : 1);
    plan->max_tiles = plan->block * strip;
    plan->tile_step =
        n_parts(plan->conv.in_channels, lanes) * plan->max_tiles * lanes + PAD;
    plan->product_step = (int64_t)plan->max_tiles * 2 * lanes + PAD;
    plan->marks_at = lines(plan->n_points * plan->tile_step);
    plan->n_block = plan->marks_at + lines(plan->block);
}

static int64_t between(int64_t least, int64_t n, int64_t most)
{
    return n < least ? least : n > most ? most : n;
}

static int64_t tile_floats(const ptac_winograd_plan *plan)
{
    return plan->n_points * n_parts(plan->conv.in_channels, plan->lanes) * plan->lanes;
}

static void cut_pieces(ptac_winograd_plan *plan, int n_threads, int64_t most_tiles)
{
    cut_strips(plan, most_tiles);
    plan->n_pieces = (int)least(n_threads, plan->n_strips);
    cut_blocks(plan, n_parts(plan->n_strips, plan->n_pieces), most_tiles);
}

static void cut_outputs(ptac_winograd_plan *plan, int n_threads)
{
    const ptac_winograd *conv = &plan->conv;
    const int64_t tile = tile_floats(plan);
    const int64_t panel = (int64_t)plan->n_points * conv->in_channels * 2 * plan->lanes;

    plan->n_panels = (int)n_parts(conv->out_channels, 2 * plan->lanes);
    plan->n_weights = plan->n_panels * panel;
    plan->is_shared = plan->n_weights > WEIGHTS_FLOATS;
    if (plan->is_shared) {
        const int64_t product = (int64_t)plan->n_points * 2 * plan->lanes;
        const int64_t room = PRIVATE_FLOATS - PATCH_FLOATS - panel;
        const int64_t most = least(SHARED_FLOATS / tile, room / (tile + product));

        cut_strips(plan, between(1, most, SHARED_STRIP));
        cut_blocks(plan, plan->n_strips, most);
        plan->n_pieces = n_threads;
        plan->n_private =
            plan->n_patch + lines(plan->n_points * plan->product_step) + lines(panel);
        plan->n_shared = plan->n_block;
    } else {
        cut_pieces(plan, n_threads,
                   between(LEAST_TILES, BLOCK_FLOATS / tile, MOST_TILES));
        plan->n_private =
            plan->n_block + lines(plan->n_points * plan->product_step) + plan->n_patch;
        plan->n_shared = lines(plan->n_weights);
    }
}

static void cut_sums(ptac_winograd_plan *plan, int n_threads)
{
    const ptac_winograd *conv = &plan->conv;
    const int lanes = plan->lanes;
    const int64_t groups_out = n_parts(conv->out_channels, lanes);
    const int64_t tile = tile_floats(plan);
    int64_t sums;

    plan->n_panels = (int)n_parts(conv->out_channels, 2 * lanes);
    plan->sum_step = n_parts(conv->in_channels, lanes) * lanes * 2 * lanes + PAD;
    plan->panel_sums = plan->n_points * plan->sum_step;
    sums = plan->n_panels * plan->panel_sums;
    plan->is_shared = sums > SUMS_FLOATS || LEAST_TILES * tile > SUMS_FLOATS / 2;
    if (plan->is_shared) {
        int64_t most = SHARED_FLOATS / tile;

        cut_strips(plan, between(1, most / n_threads, MOST_TILES));

        const int strip = plan->strip_h * plan->strip_w;

        plan->is_single = plan->n_strips * strip <= most;
        if (!plan->is_single)
            most /= 3;
        cut_blocks(plan, plan->n_strips, most);
        plan->n_pieces = (int)least(n_threads, plan->n_panels);

        const int64_t panels = n_parts(plan->n_panels, plan->n_pieces);

        plan->n_slots = plan->is_single
                            ? 1
                            : (int)between(1, SUMS_FLOATS / plan->panel_sums, panels);
        plan->n_passes = plan->is_single ? 1 : (int)n_parts(panels, plan->n_slots);
        plan->grad_step = 2 * (int64_t)plan->max_tiles * lanes + PAD;
        plan->n_shared = plan->n_block;
        plan->n_private = plan->n_patch + lines(plan->n_points * plan->grad_step) +
                          plan->n_slots * plan->panel_sums;
    } else {
        const int64_t room = PRIVATE_FLOATS - 2 * PATCH_FLOATS - sums;
        const int64_t both = tile + plan->n_points * groups_out * lanes;

        cut_pieces(plan, n_threads,
                   least(between(LEAST_TILES, BLOCK_FLOATS / tile, MOST_TILES),
                         between(1, room / both, MOST_TILES)));
        plan->grad_step = groups_out * plan->max_tiles * lanes + PAD;
        plan->n_private = plan->n_block + lines(plan->n_points * plan->grad_step) +
                          plan->n_patch + plan->n_panels * plan->panel_sums;
        plan->n_shared = 0;
    }
}

bool ptac_winograd_is_short_sum(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const int64_t least = p->kernel_h == 5 ? LONG_SUM_OF_5X5 : LONG_SUM;

    return p->result == PTAC_CONV_WEIGHT && ptac_conv2d_pixels(p) < least;
}

/* The direct sum's multiplications for one of transformed tiles, edges included. */
static double gain(const ptac_conv2d *p, const ptac_winograd_stages *stages, int out_h,
                   int out_w)
{
    const double points = (stages->mh + stages->r - 1) * (stages->mw + stages->r - 1);
    const double tiles =
        (double)n_parts(out_h, stages->mh) * n_parts(out_w, stages->mw);

    return (double)out_h * out_w * p->kernel_h * p->kernel_w / (tiles * points);
}

static ptac_winograd conv_of(const ptac_call *call)
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
    };

    if (p->result == PTAC_CONV_WEIGHT) {
        conv.y = call->inputs[1].data; /* only read */
    } else {
        conv.weight = call->inputs[1].data;
        conv.bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
        conv.scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
        conv.with_relu = p->with_relu;
        conv.with_pool = p->with_pool;
        conv.y = call->outputs[0].data;
    }
    return conv;
}

static ptac_winograd_plan plan_of(const ptac_call *call,
                                  const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    ptac_winograd_plan plan = {
        .conv = conv_of(call),
        .mh = stages->mh,
        .mw = stages->mw,
        .r = stages->r,
        .lanes = stages->lanes,
        .n_points = (stages->mh + stages->r - 1) * (stages->mw + stages->r - 1),
    };

    if (p->result == PTAC_CONV_WEIGHT) {
        cut_sums(&plan, call->n_threads);
    } else {
        cut_outputs(&plan, call->n_threads);
        plan.most_ill = plan.n_strips / WILD_SHARE;
        if (plan.most_ill == 0 && plan.n_strips >= WILD_SHARE / 2)
            plan.most_ill = 1;
    }
    return plan;
}

/*
 * Strips, or panels, for more threads than tables know of. Stock cuts finer where there
 * is little to do.
 */
static bool has_work_for_all(const ptac_call *call, const ptac_winograd_stages *stages)
{
    const ptac_winograd_plan plan = plan_of(call, stages);

    return plan.n_strips >= call->n_threads &&
           (!plan.is_shared || plan.n_panels >= call->n_threads);
}

ptac_reason ptac_winograd_accepts(const ptac_call *call,
                                  const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int summed = is_data ? p->out_channels : p->in_channels;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (ptac_conv2d_reason(call))
        return ptac_conv2d_reason(call);
    if (p->kernel_h != stages->r || p->kernel_w != stages->r || p->stride_h != 1 ||
        p->stride_w != 1 || p->pad_h >= stages->r || p->pad_w >= stages->r ||
        p->h > MOST_SIZE || p->w > MOST_SIZE || p->in_channels > MOST_CHANNELS ||
        p->out_channels > MOST_CHANNELS)
        return PTAC_SHAPE;
    if (stages->r == 5 && p->result != PTAC_CONV_WEIGHT &&
        (summed < LEAST_OF_5X5 || summed > MOST_OF_5X5))
        return PTAC_SHAPE;
    if (gain(p, stages, is_data ? p->h : p->out_h, is_data ? p->w : p->out_w) <
        LEAST_GAIN)
        return PTAC_SHAPE;
    return call->n_threads > FEW_THREADS && !has_work_for_all(call, stages)
               ? PTAC_NOT_FASTER
               : PTAC_TAKE;
}

/* The next block of strips, or the first; false when there is none. */
static bool next_block(ptac_winograd_plan *plan, bool is_first)
{
    plan->block_start = is_first ? 0 : plan->block_start + plan->n_in_block;
    plan->n_in_block = least(plan->block, plan->n_strips - plan->block_start);
    plan->n_tiles = 0;
    for (int64_t i = 0; i < plan->n_in_block; i++) {
        const ptac_strip s = ptac_strip_at(plan, plan->block_start + i);

        plan->n_tiles += s.n_rows * s.n_columns;
    }
    return plan->n_in_block > 0;
}

static void run_stage(ptac_range_fn stage, int64_t n, ptac_winograd_plan *plan)
{
    ptac_parallel_for(0, n, 1, stage, plan);
}

/* False where too many strips were wild: what has been written is of no use. */
static bool run_outputs(ptac_winograd_plan *plan, const ptac_winograd_stages *stages)
{
    if (plan->is_shared) {
        for (bool is_first = true;
             next_block(plan, is_first) && !ptac_winograd_is_ill_conditioned(plan);
             is_first = false) {
            run_stage(stages->share_tiles, plan->n_pieces, plan);
            run_stage(stages->run_panels, plan->n_pieces, plan);
        }
    } else {
        run_stage(stages->transform_halves, 2 * plan->n_panels, plan);
        run_stage(stages->run_pieces, plan->n_pieces, plan);
    }
    return !ptac_winograd_is_ill_conditioned(plan);
}

static void run_sums(ptac_winograd_plan *plan, const ptac_winograd_stages *stages)
{
    if (plan->is_shared) {
        for (plan->pass = 0; plan->pass < plan->n_passes; plan->pass++)
            for (bool is_first = true; next_block(plan, is_first); is_first = false) {
                run_stage(stages->share_tiles, plan->n_pieces, plan);
                run_stage(stages->sum_panels, plan->n_pieces, plan);
            }
    } else {
        const int64_t groups = n_parts(plan->conv.in_channels, plan->lanes);

        run_stage(stages->sum_pieces, plan->n_pieces, plan);
        run_stage(stages->store_pieces, plan->n_panels * groups, plan);
    }
    if (plan->grad_bias)
        run_stage(stages->sum_biases, plan->conv.out_channels, plan);
}

/* The part of the images' pixels that must be other than zero for tiles to be close. */
static float least_filled(const ptac_winograd_stages *stages)
{
    if (stages->r == 5)
        return 0.4F;
    return stages->mh * stages->mw > 8   ? 0.125F
           : stages->mh * stages->mw > 4 ? 0.0625F
                                         : 0;
}

/*
 * Whether all of n weights are integers of at most WHOLE_BITS bits times one power of
 * two. Zeros alone are not: tiles are exact there.
 */
static bool are_integers(const float *weights, int64_t n)
{
    int highest = -1000, lowest = 1000; /* powers of two of the bits in use */

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits, mantissa;
        int exponent;

        memcpy(&bits, weights + i, sizeof bits);
        exponent = (int)(bits >> 23 & 0xff);
        mantissa = (bits & 0x7fffff) | (exponent ? 0x800000 : 0);
        if (exponent == 0xff)
            return false;
        if (mantissa == 0)
            continue;
        exponent = exponent ? exponent : 1;

        const int top = exponent + 31 - __builtin_clz(mantissa);
        const int bottom = exponent + __builtin_ctz(mantissa);

        highest = top > highest ? top : highest;
        lowest = bottom < lowest ? bottom : lowest;
        if (highest - lowest >= WHOLE_BITS)
            return false;
    }
    return highest >= lowest;
}

/* Whether the taps of each of n filters are all the same; not zeros alone. */
static bool are_constant(const float *weights, int64_t n, int taps)
{
    bool is_zero = true;

    for (int64_t i = 0; i < n; i++, weights += taps) {
        is_zero &= weights[0] == 0;
        for (int j = 1; j < taps; j++)
            if (weights[j] != weights[0])
                return false;
    }
    return !is_zero;
}

/*
 * Integers, and filters whose taps are all equal: stock sums them exactly or nearly so,
 * tiles do not. Trained weights end both searches within their first few values, so
 * that each call can afford to look and nothing is kept.
 */
static bool are_regular(const ptac_winograd *conv, int r)
{
    const int64_t filters = (int64_t)conv->in_channels * conv->out_channels;

    return are_integers(conv->weight, filters * r * r) ||
           are_constant(conv->weight, filters, r * r);
}

ptac_status ptac_winograd_run(const ptac_call *call, const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_winograd_plan plan = plan_of(call, stages);
    float *scratch;
    bool is_done = true;

    if (!is_weight && (are_regular(&plan.conv, stages->r) ||
                       stages->is_unsuited(&plan.conv, least_filled(stages))))
        return PTAC_UNSUITED;
    scratch = ptac_scratch_take(
        (size_t)(plan.n_shared + plan.n_pieces * plan.n_private) * sizeof *scratch);
    if (!scratch)
        return PTAC_NO_MEMORY;
    if (is_weight) {
        plan.grad_weight = call->outputs[0].data;
        plan.grad_bias = call->n_outputs > 1 ? call->outputs[1].data : NULL;
    }
    plan.weights = plan.tiles = scratch;
    plan.scratch = scratch + plan.n_shared;
    if (is_weight)
        run_sums(&plan, stages);
    else
        is_done = run_outputs(&plan, stages);
    ptac_scratch_give(scratch);
    return is_done ? PTAC_OK : PTAC_UNSUITED;
}
