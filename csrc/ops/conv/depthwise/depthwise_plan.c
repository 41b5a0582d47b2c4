/*
 * depthwise_plan.c - how a depthwise convolution is cut and run.
 */
#include "ops/conv/depthwise/depthwise_plan.h"

#include "core/scratch.h"

enum {
    STRIP_FLOATS = 5 << 10, /* packed, of one channel: 20 KiB of the first cache */
    STRIP_FLOATS_OF_LANES = 24 << 10, /* likewise of all lanes: of the second */
    MOST_FLOATS = 1 << 20,            /* of the least strip */
    ROWS = 7,              /* that are computed together, and divide the usual images */
    IN_PLACE_COLUMNS = 13, /* of rows of one vector */
    PAIRS_COLUMNS = 7,     /* pairs of them */
    IN_PLACE_WIDEST = 320, /* of rows, but for gradients of weights */
    IN_PLACE_IMAGES = 4,   /* of such, for gradients of weights */
    WORK_OF_PIECE = 300000,
};

static int64_t whole(int64_t n, int lanes)
{
    return ptac_parts(n, lanes) * lanes;
}

static ptac_depthwise_axis axis_of(ptac_conv_result result, int size, int out,
                                   int kernel, int stride, int pad, int dilation)
{
    if (result == PTAC_CONV_DATA)
        return (ptac_depthwise_axis){
            .size = out,
            .out = size,
            .kernel = kernel,
            .stride = 1,
            .dilation = dilation,
            .pad = (kernel - 1) * dilation - pad,
            .up = stride,
        };
    return (ptac_depthwise_axis){size, out, kernel, stride, dilation, pad, 1};
}

/* Whether the templates have lines that read rows where they lie. */
static bool may_be_in_place(const ptac_depthwise_plan *plan)
{
    const ptac_depthwise_axis *h = &plan->h, *w = &plan->w;
    const int taps = h->kernel;

    if (plan->channels_last || h->dilation > 1 || (taps != 3 && taps != 5 && taps != 7))
        return false;
    if (h->stride != w->stride || h->up != w->up || h->stride > 2 || h->up > 2)
        return false;
    return h->up == 1 || (w->dilation == 1 && (h->pad - w->pad) % 2 == 0);
}

/*
 * Rows of one vector at most are read in place by few taps, and where nearly all of
 * sixteen lanes work. A channel's gradients of weights end in sums over lanes, which
 * take longer than all else where images are few. The widest rows were no faster in
 * place than from strips, and some slower. Pairs beat strips of which half are zeros
 * even where half of the lanes idle. With eight lanes 7 taps at stride 2 were slower in
 * place than from strips.
 */
static bool is_in_place(const ptac_depthwise_plan *plan, bool is_weight)
{
    const int columns = (int)ptac_parts(plan->w.out, plan->w.up);

    if (!may_be_in_place(plan))
        return false;
    if (plan->w.up == 2)
        return columns >= PAIRS_COLUMNS;
    if (plan->h.stride == 2 && plan->h.kernel == 7 && plan->lanes == 8)
        return false;
    if (columns > plan->lanes)
        return is_weight || columns <= IN_PLACE_WIDEST;
    return plan->h.kernel * plan->w.kernel <= 9 && columns >= IN_PLACE_COLUMNS &&
           (!is_weight || plan->n >= IN_PLACE_IMAGES);
}

/* Packed floats of a strip of so many output rows. */
static int64_t packed(const ptac_depthwise_plan *plan, int rows)
{
    const int64_t row = (int64_t)plan->width * (plan->by_channels ? plan->lanes : 1);

    return row * ptac_depthwise_reach(&plan->h, rows);
}

static void lay_out(const ptac_depthwise *p, int lanes, ptac_depthwise_plan *plan)
{
    plan->h = axis_of(p->result, p->h, p->out_h, p->kernel_h, p->stride_h, p->pad_h,
                      p->dilation_h);
    plan->w = axis_of(p->result, p->w, p->out_w, p->kernel_w, p->stride_w, p->pad_w,
                      p->dilation_w);
    plan->n = p->n;
    plan->channels = p->channels;
    plan->act = p->act;
    plan->is_reversed = p->result == PTAC_CONV_DATA;
    plan->channels_last = p->channels_last;
    plan->lanes = lanes;
    plan->in_place = is_in_place(plan, p->result == PTAC_CONV_WEIGHT);
    plan->in_pairs = plan->in_place && plan->w.up == 2;
    plan->by_channels =
        !plan->in_place &&
        (p->channels_last || (plan->w.out <= lanes && plan->channels >= lanes / 2));
    plan->is_signal = !plan->by_channels && plan->h.out == 1 && plan->h.kernel == 1;
    if (plan->by_channels) {
        plan->groups = (int)ptac_parts(plan->channels, lanes);
        plan->width = ptac_depthwise_reach(&plan->w, plan->w.out);
    } else {
        plan->groups = plan->channels;
        if (plan->w.stride == 1 && plan->w.up == 1)
            plan->lead = (lanes - plan->w.pad % lanes) % lanes;
        plan->part =
            (int)whole(plan->lead + whole(plan->w.out, lanes) +
                           (plan->w.kernel - 1) * plan->w.dilation / plan->w.stride,
                       lanes);
        plan->width = plan->part * plan->w.stride;
    }
    plan->columns = ptac_depthwise_span_of(&plan->w, 0, plan->width - plan->lead);
}

static void cut(ptac_depthwise_plan *plan, bool is_weight, int n_threads)
{
    const int64_t most = plan->by_channels ? STRIP_FLOATS_OF_LANES : STRIP_FLOATS;
    const int64_t n_taps = (int64_t)plan->h.kernel * plan->w.kernel;
    const int64_t work = plan->n * plan->channels * plan->h.out * plan->w.out * n_taps;
    const int64_t step = packed(plan, 2) - packed(plan, 1);
    int64_t rows = 1 + (most - packed(plan, 1)) / step;

    if (rows > ROWS)
        rows -= rows % ROWS;
    rows = rows < 1 ? 1 : ptac_least(rows, plan->h.out);
    plan->strip = (int)rows;
    plan->strips = (int)ptac_parts(plan->h.out, rows);
    plan->n_units = plan->groups * (is_weight ? 1 : plan->n);
    plan->n_pieces =
        ptac_least(ptac_least(n_threads, plan->n_units), 1 + work / WORK_OF_PIECE);
    /* Behind the last row vectors reach, and the row that is taken apart lies. */
    plan->n_packed = plan->width + 4 * plan->lanes;
    if (!plan->in_place)
        plan->n_packed += packed(plan, plan->strip);
    plan->n_packed = whole(plan->n_packed, 16);
    /* Transposed results, or gradients. */
    plan->n_second =
        plan->by_channels ? rows * plan->w.out * plan->lanes + plan->lanes : 0;
    /* Weights; or sums of all taps and of the bias, and these in double. */
    plan->n_taps = (n_taps + 1) * plan->lanes;
    plan->n_private = plan->n_packed + plan->n_second + plan->n_taps * 3;
}

ptac_reason ptac_depthwise_accepts(const ptac_call *call, int lanes)
{
    const ptac_depthwise *p = call->params;
    ptac_depthwise_plan plan = {.n = 0};

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->kernel_h > PTAC_DEPTHWISE_MOST_KERNEL ||
        p->kernel_w > PTAC_DEPTHWISE_MOST_KERNEL)
        return PTAC_SHAPE;
    if ((int64_t)p->w + p->pad_w > MOST_FLOATS ||
        (int64_t)p->kernel_w * p->dilation_w > MOST_FLOATS ||
        (int64_t)p->kernel_h * p->dilation_h > MOST_FLOATS ||
        p->stride_w > MOST_FLOATS / 1024 || p->stride_h > MOST_FLOATS / 1024)
        return PTAC_SHAPE;
    lay_out(p, lanes, &plan);
    return packed(&plan, 1) > MOST_FLOATS ? PTAC_SHAPE : PTAC_TAKE;
}

ptac_status ptac_depthwise_run(const ptac_call *call,
                               const ptac_depthwise_stages *stages)
{
    const ptac_depthwise *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    ptac_depthwise_plan plan = {
        .image = call->inputs[0].data,
        .result = call->outputs[0].data,
    };

    lay_out(p, stages->lanes, &plan);
    cut(&plan, is_weight, call->n_threads);
    if (is_weight) {
        plan.grad = call->inputs[1].data;
        plan.grad_bias = call->n_outputs > 1 ? call->outputs[1].data : NULL;
    } else {
        plan.weight = call->inputs[1].data;
        plan.bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
        plan.scale = call->n_inputs > 3 ? call->inputs[3].data : NULL;
    }
    plan.scratch =
        ptac_scratch_take((size_t)(plan.n_private * plan.n_pieces) * sizeof(float));
    if (!plan.scratch)
        return PTAC_NO_MEMORY;
    ptac_parallel_for(0, plan.n_pieces, 1,
                      is_weight ? stages->sum_weights : stages->convolve, &plan);
    ptac_scratch_give(plan.scratch);
    return PTAC_OK;
}
