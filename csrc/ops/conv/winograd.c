/*
 * winograd.c - which convolutions run by transformed tiles, and their stages.
 */
#include "ops/conv/winograd.h"

#include "core/scratch.h"

#include <math.h>
#include <string.h>

/* The part of the taps' places that must be inside the image, for 5x5 kernels. */
#define LEAST_INSIDE 0.23F

/* That part times the part of pixels other than zero, unless nearly all are. */
#define LEAST_OF_BOTH 0.31F
#define NEARLY_ALL    0.9F

enum {
    WHOLE_BITS = 12, /* of the integers that weights are looked at for */
    SHORT_BITS = 14, /* of 24: integers, bfloat16, float16 */
    SAMPLES = 64,
    MOST_SIZE = 1 << 20,
    MOST_CHANNELS = 1024, /* or blocks get too small for their weights */
    LEAST_OF_5X5 = 4,     /* summed channels */
    MOST_OF_5X5 = 128,
    FEW_THREADS = 2, /* that tables were measured with */
};

/* Fewer multiplications saved do not pay for the transforms. */
#define LEAST_GAIN 1.6

/*
 * For the gradient of the weight 4x4 tiles and 5x5 taps are not close enough where it
 * has few terms. Stock sums those one by one, so that its error grows with their
 * number, and ours by blocks: at 256 terms the error of 4x4 tiles is up to 3.3 times
 * stock's, from 1024 on equal, above 3000 less.
 */
static int64_t fewest_terms(ptac_tile_size tile)
{
    return tile.r == 5 ? 4096 : tile.mh * tile.mw > 8 ? 1024 : 0;
}

/* The direct sum's multiplications for one of transformed tiles, edges included. */
static double gain(const ptac_winograd *conv, ptac_tile_size tile)
{
    const double tiles =
        (double)ptac_parts(conv->out_h, tile.mh) * ptac_parts(conv->out_w, tile.mw);

    return (double)conv->out_h * conv->out_w * tile.r * tile.r /
           (tiles * tile.n_points);
}

/* The part of the taps' places along an axis that lie inside the image. */
static float part_along(int size, int out_size, int kernel, int pad)
{
    int64_t n_inside = 0;

    for (int tap = 0; tap < kernel; tap++) {
        const int first = pad - tap > 0 ? pad - tap : 0;
        const int last = size + pad - tap < out_size ? size + pad - tap : out_size;

        n_inside += last > first ? last - first : 0;
    }
    return (float)n_inside / (float)((int64_t)out_size * kernel);
}

/* Of images that are mostly padding stock sums few terms, with less error. */
static float part_inside(const ptac_winograd *conv, int r)
{
    return part_along(conv->h, conv->out_h, r, conv->pad_h) *
           part_along(conv->w, conv->out_w, r, conv->pad_w);
}

ptac_reason ptac_winograd_accepts(const ptac_call *call,
                                  const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const ptac_tile_size tile = stages->tile;
    const ptac_winograd conv = ptac_winograd_of(call);
    const ptac_reason why = ptac_conv2d_reason(call);

    if (why)
        return why;
    if (p->kernel_h != tile.r || p->pad_h >= tile.r || p->pad_w >= tile.r ||
        p->h > MOST_SIZE || p->w > MOST_SIZE || p->in_channels > MOST_CHANNELS ||
        p->out_channels > MOST_CHANNELS)
        return PTAC_SHAPE;
    if (p->result == PTAC_CONV_WEIGHT && ptac_conv2d_pixels(p) < fewest_terms(tile))
        return PTAC_SHAPE;
    if (tile.r == 5 && p->result != PTAC_CONV_WEIGHT &&
        (conv.in_channels < LEAST_OF_5X5 || conv.in_channels > MOST_OF_5X5 ||
         part_inside(&conv, tile.r) < LEAST_INSIDE))
        return PTAC_SHAPE;
    if (gain(&conv, tile) < LEAST_GAIN)
        return PTAC_SHAPE;
    return call->n_threads > FEW_THREADS && !ptac_winograd_has_work_for_all(call, tile)
               ? PTAC_NOT_FASTER
               : PTAC_TAKE;
}

/* The next block of strips; the first where turn.last is 0. False: there is none. */
static bool next_block(ptac_winograd_plan *plan)
{
    ptac_turn *turn = &plan->turn;
    const int64_t rest = plan->strips.n - turn->last;

    turn->first = turn->last;
    turn->last = turn->first + (rest < plan->block ? rest : plan->block);
    turn->n_tiles = 0;
    for (int64_t i = turn->first; i < turn->last; i++) {
        const ptac_tile_strip s = ptac_tile_strip_at(plan, i);

        turn->n_tiles += s.n_rows * s.n_columns;
    }
    return rest > 0;
}

static void run_stage(ptac_range_fn stage, int64_t n, ptac_winograd_plan *plan)
{
    ptac_parallel_for(0, n, 1, stage, plan);
}

/* False where too many strips were ill-conditioned: the outputs hold anything then. */
static bool run_outputs(ptac_winograd_plan *plan, const ptac_winograd_stages *stages)
{
    if (plan->is_shared) {
        while (next_block(plan) && !ptac_winograd_is_ill_conditioned(plan)) {
            run_stage(stages->share_tiles, plan->n_pieces, plan);
            run_stage(stages->run_panels, plan->n_pieces, plan);
        }
    } else {
        run_stage(stages->transform_halves, 2 * plan->n_panels, plan);
        run_stage(stages->run_pieces, plan->n_pieces, plan);
    }
    return !ptac_winograd_is_ill_conditioned(plan);
}

/* Panels that a thread does not have slots for take another pass over all blocks. */
static int n_passes(const ptac_winograd_plan *plan)
{
    const int64_t panels = ptac_parts(plan->n_panels, plan->n_pieces);

    return ptac_winograd_is_single(plan) ? 1 : (int)ptac_parts(panels, plan->n_slots);
}

static void run_sums(ptac_winograd_plan *plan, const ptac_winograd_stages *stages)
{
    if (plan->is_shared) {
        for (; plan->turn.pass < n_passes(plan); plan->turn.pass++) {
            plan->turn.last = 0;
            while (next_block(plan)) {
                run_stage(stages->share_tiles, plan->n_pieces, plan);
                run_stage(stages->sum_panels, plan->n_pieces, plan);
            }
        }
    } else {
        const int64_t groups = ptac_parts(plan->conv.in_channels, plan->tile.lanes);

        run_stage(stages->sum_pieces, plan->n_pieces, plan);
        run_stage(stages->store_pieces, plan->n_panels * groups, plan);
    }
    if (plan->grad_bias)
        run_stage(stages->sum_biases, plan->conv.out_channels, plan);
}

/* The part of the images' pixels that must be other than zero for tiles to be close. */
static float least_filled(const ptac_winograd_stages *stages)
{
    if (stages->tile.r == 5)
        return 0.4F;
    return stages->tile.mh * stages->tile.mw > 8   ? 0.125F
           : stages->tile.mh * stages->tile.mw > 4 ? 0.0625F
                                                   : 0;
}

/* Whether weights are integers of WHOLE_BITS bits times one power of two; not all 0. */
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

/* What a sample of n values says about all of them. */
typedef struct sample {
    int n_seen, n_filled; /* values, and those that are not zero */
    int n_short;          /* those with at most SHORT_BITS significant bits */
} sample;

static void look_at(sample *s, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    s->n_seen++;
    s->n_filled += value != 0;
    s->n_short += value != 0 && (bits & ((1u << (24 - SHORT_BITS)) - 1)) == 0;
}

/* SAMPLES values all over the tensor; where these are zero, the first that is not. */
static sample sample_of(const float *values, int64_t n)
{
    const int64_t step = n > SAMPLES ? n / SAMPLES : 1;
    sample s = {0};

    for (int64_t i = step / 2; i < n; i += step)
        look_at(&s, values[i]);
    for (int64_t i = 0; i < n && s.n_filled == 0; i++)
        look_at(&s, values[i]);
    return s;
}

/* Few bits, as bfloat16 has: stock sums products of two such with hardly an error. */
static bool is_short(const sample *s)
{
    return 2 * s->n_short > s->n_filled;
}

/*
 * How much larger than their outputs the tiles of filters are: the sum over all points
 * of a transformed filter, squared, times what the other transforms do to white noise
 * there, for one of the filter's own sum of squares. 116 of random 5x5 filters; 270 of
 * constant ones, whose outputs are as small as the rest of a tile is large. Of 3x3
 * filters in 4x2 tiles 64 and 120.
 *
 * The sum is a quadratic form of the taps. Points come in pairs, so that taps an odd
 * number apart do not meet; others meet with element (i + j) / 2 of a direction's row
 * here, the sum over its points p of p^(i + j) |column of A^T|^2 |row of B^T|^2 /
 * (product of p's distances)^2.
 */
static bool are_ill_conditioned(const float *filter, int64_t n, ptac_tile_size tile)
{
    enum { FILTERS = 32 };
    static const float of_5x5[] = {22.78F, 5.123F, 3.456F, 4.624F, 17.92F};
    static const float of_four[] = {26.24F, 9.747F, 21.37F}, of_two[] = {4, 2, 4};
    const int r = tile.r;
    const float *down = r == 5 ? of_5x5 : of_four, *across = r == 5 ? of_5x5 : of_two;
    const int64_t step = n > FILTERS ? n / FILTERS : 1;
    double mixed = 0, own = 0;

    for (int64_t i = 0; i < n; i += step) {
        const float *g = filter + i * r * r;

        for (int at = 0; at < r * r; at++) {
            const int a = at / r, b = at % r;
            float others = 0;

            for (int c = a % 2; c < r; c += 2)
                for (int d = b % 2; d < r; d += 2)
                    others += down[(a + c) / 2] * across[(b + d) / 2] * g[c * r + d];
            mixed += (double)(others * g[at]);
            own += (double)(g[at] * g[at]);
        }
    }
    return mixed > (r == 5 ? 170 : 90) * own;
}

/*
 * Whether stock's sums are exact or much better than those of tiles. Each call looks,
 * and nothing is kept: trained weights end every search within their first few values.
 */
static bool is_better_summed(const ptac_winograd *conv, const ptac_winograd_stages *s)
{
    const int r = s->tile.r;
    const int64_t filters = (int64_t)conv->in_channels * conv->out_channels;
    const int64_t n_pixels = conv->n * conv->in_channels * conv->h * (int64_t)conv->w;
    const sample weights = sample_of(conv->weight, filters * r * r);
    float filled, least;

    if (are_integers(conv->weight, filters * r * r) ||
        are_constant(conv->weight, filters, r * r))
        return true;
    if (is_short(&weights)) {
        const sample pixels = sample_of(conv->x, n_pixels);

        if (is_short(&pixels))
            return true;
    }
    if (weights.n_filled == 0)
        return false; /* zeros are exact */
    if (r < 5)
        return s->is_unsuited(conv, least_filled(s));
    filled = (float)weights.n_filled / (float)weights.n_seen;
    least =
        fmaxf(least_filled(s), fminf(LEAST_OF_BOTH / part_inside(conv, r), NEARLY_ALL));
    return s->is_unsuited(conv, least / filled) ||
           are_ill_conditioned(conv->weight, filters, s->tile);
}

/* Whether only smaller tiles are close: stock has hardly an error with few terms. */
static bool wants_smaller_tiles(const ptac_call *call, ptac_tile_size tile)
{
    enum { TERMS = 512, CHANNELS = 5 };
    const ptac_conv2d *p = call->params;
    const ptac_winograd conv = ptac_winograd_of(call);
    const int64_t filters = (int64_t)p->in_channels * p->out_channels;
    sample weights;

    if (p->result == PTAC_CONV_WEIGHT)
        return ptac_conv2d_pixels(p) < TERMS;
    weights = sample_of(conv.weight, filters * tile.r * tile.r);
    return conv.in_channels * weights.n_filled < CHANNELS * weights.n_seen ||
           are_ill_conditioned(conv.weight, filters, tile);
}

/* The same for the gradient of the weight. */
static bool is_weight_better_summed(const ptac_call *call)
{
    const sample pixels = sample_of(call->inputs[0].data, call->inputs[0].n_elements);
    const sample grads = sample_of(call->inputs[1].data, call->inputs[1].n_elements);

    return is_short(&pixels) && is_short(&grads);
}

ptac_status ptac_winograd_run(const ptac_call *call, const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_winograd_plan plan;
    float *scratch;
    bool is_done = true;

    if (stages->smaller && wants_smaller_tiles(call, stages->tile))
        stages = stages->smaller;
    plan = ptac_winograd_plan_of(call, stages->tile);
    if (is_weight ? is_weight_better_summed(call)
                  : is_better_summed(&plan.conv, stages))
        return PTAC_UNSUITED;
    scratch = ptac_scratch_take(
        (size_t)(plan.at.n_shared + plan.n_pieces * plan.at.n_private) *
        sizeof *scratch);
    if (!scratch)
        return PTAC_NO_MEMORY;
    if (is_weight) {
        plan.grad_weight = call->outputs[0].data;
        plan.grad_bias = call->n_outputs > 1 ? call->outputs[1].data : NULL;
    }
    plan.shared = scratch;
    plan.scratch = scratch + plan.at.n_shared;
    if (is_weight)
        run_sums(&plan, stages);
    else
        is_done = run_outputs(&plan, stages);
    ptac_scratch_give(scratch);
    return is_done ? PTAC_OK : PTAC_UNSUITED;
}
