/*
 * direct.c - how a convolution of few channels is cut and run.
 */
#include "ops/conv/direct.h"

#include "core/scratch.h"

#include <string.h>

enum {
    STRIP_FLOATS = 4096, /* of padded rows: 16 KiB of the first cache */
    MOST_SIZE = 1 << 20,
    MOST_WIDTH = 1 << 14,
    MOST_OUTPUTS = 1024,
};

/* Whether outputs fill vectors. One channel, slow in stock, pays for idle lanes. */
static bool is_wide_enough(const ptac_conv2d *p)
{
    enum { WHOLE = 16 };
    const int whole = (p->out_w + WHOLE - 1) / WHOLE * WHOLE;
    const int least = p->in_channels == 1             ? 12
                      : p->result == PTAC_CONV_WEIGHT ? 32
                                                      : 16;

    return p->out_w >= least && (p->in_channels == 1 || p->out_w * 8 >= whole * 7);
}

ptac_reason ptac_direct_accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const ptac_reason why = ptac_conv2d_reason(call);

    if (why)
        return why;
    if (p->channels_last)
        return PTAC_LAYOUT;
    if (p->result == PTAC_CONV_DATA || p->with_pool ||
        p->in_channels > PTAC_CONV_FIRST_CHANNELS || !is_wide_enough(p) ||
        p->h > MOST_SIZE || p->w > MOST_WIDTH || p->out_channels > MOST_OUTPUTS)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

static void cut(ptac_direct_plan *plan, int n_threads, bool is_weight)
{
    const ptac_conv2d *p = plan->conv;
    const int over = p->kernel_h - 1;
    int64_t rows;

    plan->n_taps = p->in_channels * p->kernel_h * p->kernel_w;
    /* Loads of whole vectors reach behind the last output's pixels. */
    plan->width =
        (int)ptac_parts(p->out_w + p->kernel_w - 1, plan->lanes) * plan->lanes +
        plan->lanes;
    rows = STRIP_FLOATS / plan->width / p->in_channels - over;
    if (rows < 1)
        rows = 1;
    plan->strips = (int)ptac_parts(p->out_h, rows);
    plan->strip = (int)ptac_parts(p->out_h, plan->strips);
    plan->strips = (int)ptac_parts(p->out_h, plan->strip);
    plan->n_strips = p->n * plan->strips;
    plan->n_pieces = (int)(ptac_least(n_threads, plan->n_strips));
    plan->n_rows =
        ptac_parts((int64_t)p->in_channels * (plan->strip + over) * plan->width, 16) *
        16;
    plan->n_private = plan->n_rows;
    if (is_weight)
        plan->n_private += (int64_t)p->out_channels * (plan->n_taps + 1) * plan->lanes;
}

/* Pieces' sums in the order of the pieces. */
static void add_pieces(const ptac_direct_plan *plan)
{
    const ptac_conv2d *p = plan->conv;
    const int64_t n_weights = (int64_t)p->out_channels * plan->n_taps;
    const int64_t n_sums = n_weights + p->out_channels;

    for (int64_t i = 0; i < n_sums; i++) {
        double sum = 0;

        for (int piece = 0; piece < plan->n_pieces; piece++)
            sum += plan->sums[piece * n_sums + i];
        if (i < n_weights)
            plan->grad_weight[i] = (float)sum;
        else if (plan->grad_bias)
            plan->grad_bias[i - n_weights] = (float)sum;
    }
}

ptac_status ptac_direct_run(const ptac_call *call, const ptac_direct_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_direct_plan plan = {
        .conv = p, .x = call->inputs[0].data, .lanes = stages->lanes};
    size_t scratch_bytes, sum_bytes = 0;

    cut(&plan, call->n_threads, is_weight);
    scratch_bytes = (size_t)(plan.n_private * plan.n_pieces) * sizeof(float);
    if (is_weight) {
        plan.grad = call->inputs[1].data;
        plan.grad_weight = call->outputs[0].data;
        plan.grad_bias = call->n_outputs > 1 ? call->outputs[1].data : NULL;
        sum_bytes = (size_t)p->out_channels * (size_t)(plan.n_taps + 1) *
                    (size_t)plan.n_pieces * sizeof(double);
    } else {
        plan.weight = call->inputs[1].data;
        plan.bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
        plan.scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
        plan.y = call->outputs[0].data;
    }
    plan.scratch = ptac_scratch_take(scratch_bytes + sum_bytes);
    if (!plan.scratch)
        return PTAC_NO_MEMORY;
    plan.sums = (double *)((char *)plan.scratch + scratch_bytes);
    memset(plan.sums, 0, sum_bytes);
    ptac_parallel_for(0, plan.n_pieces, 1,
                      is_weight ? stages->sum_weights : stages->forward, &plan);
    if (is_weight)
        add_pieces(&plan);
    ptac_scratch_give(plan.scratch);
    return PTAC_OK;
}
