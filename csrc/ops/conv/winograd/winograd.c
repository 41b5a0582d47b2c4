/*
 * winograd.c - which convolutions run by transformed tiles, and their stages.
 */
#include "ops/conv/winograd/winograd.h"

#include "core/scratch.h"

/* The part of the taps' places that must be inside the image, for 5x5 kernels. */
#define LEAST_INSIDE 0.23F

enum {
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
 * stock's, from 1024 on equal, above 3000 less. In channels_last stock sums by blocks,
 * too, and by more of them with more threads: there 4x4 tiles have up to 4.5 times its
 * error at 1500 terms, and 2.2 times from 8192 for each thread on; 5x5 taps still have
 * 2.6 times it at 16384.
 */
static int64_t fewest_terms(const ptac_call *call, ptac_tile_size tile)
{
    const ptac_conv2d *p = call->params;

    if (tile.r == 5)
        return p->channels_last ? INT64_MAX : 4096;
    if (tile.mh * tile.mw <= 8)
        return 0;
    return p->channels_last ? 8192 * (int64_t)call->n_threads : 1024;
}

/* The direct sum's multiplications for one of transformed tiles, edges included. */
static double gain(const ptac_winograd *conv, ptac_tile_size tile)
{
    const double tiles =
        (double)ptac_parts(conv->out_h, tile.mh) * ptac_parts(conv->out_w, tile.mw);

    return (double)conv->out_h * conv->out_w * tile.r * tile.r /
           (tiles * tile.n_points);
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
    if (p->result == PTAC_CONV_WEIGHT &&
        ptac_conv2d_pixels(p) < fewest_terms(call, tile))
        return PTAC_SHAPE;
    if (tile.r == 5 && p->result != PTAC_CONV_WEIGHT &&
        (conv.in_channels < LEAST_OF_5X5 || conv.in_channels > MOST_OF_5X5 ||
         ptac_winograd_part_inside(&conv, tile.r) < LEAST_INSIDE))
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

static size_t bytes_of_panels(const ptac_winograd_plan *plan)
{
    return sizeof(float) * (size_t)(plan->n_panels * plan->at.panel);
}

size_t ptac_winograd_kept_bytes(const ptac_call *call,
                                const ptac_winograd_stages *stages)
{
    size_t most = 0;

    for (; stages; stages = stages->smaller) {
        const ptac_winograd_plan plan = ptac_winograd_plan_of(call, stages->tile);
        const size_t n = bytes_of_panels(&plan);

        most = n > most ? n : most;
    }
    return most;
}

/* False where too many strips were ill-conditioned: the outputs hold anything then. */
static bool run_outputs(ptac_winograd_plan *plan, const ptac_winograd_stages *stages)
{
    if (plan->is_shared) {
        while (next_block(plan) && !ptac_winograd_is_ill_conditioned(plan)) {
            run_stage(stages->share_tiles, plan->n_pieces, plan);
            run_stage(stages->run_panels, plan->n_pieces, plan);
            plan->is_kept_ready = plan->kept != NULL;
        }
    } else {
        if (!plan->is_kept_ready)
            run_stage(stages->transform_halves, 2 * plan->n_panels, plan);
        plan->is_kept_ready = plan->kept != NULL;
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

ptac_status ptac_winograd_run(const ptac_call *call, const ptac_winograd_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_winograd_plan plan;
    int64_t n_shared;
    float *scratch;
    bool is_done = true;

    if (stages->smaller && ptac_winograd_wants_smaller_tiles(call, stages->tile))
        stages = stages->smaller;
    plan = ptac_winograd_plan_of(call, stages->tile);
    if (is_weight ? ptac_winograd_is_weight_better_summed(call)
                  : ptac_winograd_is_better_summed(&plan.conv, stages))
        return PTAC_UNSUITED;
    if (call->kept && !is_weight) {
        plan.kept = call->kept->data;
        plan.is_kept_ready = call->kept->maker == stages;
        call->kept->maker = NULL; /* while it is written */
    }
    n_shared = plan.kept && !plan.is_shared ? 0 : plan.at.n_shared;
    scratch = ptac_scratch_take((size_t)(n_shared + plan.n_pieces * plan.at.n_private) *
                                sizeof *scratch);
    if (!scratch)
        return PTAC_NO_MEMORY;
    if (is_weight) {
        plan.grad_weight = call->outputs[0].data;
        plan.grad_bias = call->n_outputs > 1 ? call->outputs[1].data : NULL;
    }
    plan.shared = n_shared ? scratch : plan.kept;
    plan.scratch = scratch + n_shared;
    if (is_weight)
        run_sums(&plan, stages);
    else
        is_done = run_outputs(&plan, stages);
    if (plan.kept)
        call->kept->maker = plan.is_kept_ready ? stages : NULL;
    ptac_scratch_give(scratch);
    return is_done ? PTAC_OK : PTAC_UNSUITED;
}
