/*
 * implicit.c - which convolutions of any geometry are served, and their stages.
 */
#include "ops/conv/implicit/implicit.h"

#include "core/scratch.h"
#include "ops/conv/implicit/implicit_gain.h"

enum {
    MOST_TAPS = 1024,
    MOST_SIZE = 1 << 20,
    MOST_PLACES = 1 << 30,
    MOST_REACHED = 1 << 21, /* floats that the taps of one place meet, or lie between */
};

/* Slots of a copy for one place along an axis. */
static int64_t slots_of(int kernel, int dilation, int stride, bool is_data)
{
    const int64_t reach = (int64_t)(kernel - 1) * dilation / stride + 1;

    return is_data ? reach : reach * ptac_least(stride, kernel);
}

static bool is_within_reach(const ptac_conv2d *p)
{
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int64_t along[] = {
        slots_of(p->kernel_d, p->dilation_d, p->stride_d, is_data),
        slots_of(p->kernel_h, p->dilation_h, p->stride_h, is_data),
        slots_of(p->kernel_w, p->dilation_w, p->stride_w, is_data),
        (is_data ? p->out_channels : p->in_channels) / p->groups,
    };
    int64_t most = MOST_REACHED;

    for (int i = 0; i < 4; i++) {
        if (along[i] > most)
            return false;
        most /= along[i];
    }
    return true;
}

/* Taps; and places of a channel, which an int counts. */
static bool has_few(const ptac_conv2d *p)
{
    const int64_t taps = (int64_t)p->kernel_h * p->kernel_w;

    return taps <= MOST_TAPS && taps * p->kernel_d <= MOST_TAPS &&
           (int64_t)p->d * p->h * p->w <= MOST_PLACES;
}

ptac_reason ptac_implicit_accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->channels_last)
        return PTAC_LAYOUT;
    if (p->with_pool || p->stride_d > PTAC_MOST_PHASES ||
        p->stride_h > PTAC_MOST_PHASES || p->stride_w > PTAC_MOST_PHASES ||
        p->d > MOST_SIZE || p->h > MOST_SIZE || p->w > MOST_SIZE || !has_few(p) ||
        !is_within_reach(p) || ptac_implicit_copies_much(call))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* Of forward convolutions: whether cases like them were measured. */
static bool is_like_cases(const ptac_conv2d *p)
{
    enum { LEAST = 9, LEAST_OF_MANY = 36 };
    const int64_t n_places = (int64_t)p->out_d * p->out_h * p->out_w;

    return n_places >= (p->n == 1 ? LEAST : LEAST_OF_MANY) && p->kernel_d <= p->d &&
           p->kernel_h <= p->h && p->kernel_w <= p->w;
}

/* Prices are of images, neither volumes nor sequences; plans, of what is taken. */
static bool is_estimated(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_sequence =
        p->h == 1 && p->kernel_h == 1 && (p->w > 1 || p->kernel_w > 1);

    return !p->is_transposed && !ptac_conv2d_is_of_volumes(call) && !is_sequence &&
           ptac_implicit_accepts(call) == PTAC_TAKE;
}

/*
 * Of what ATen does itself 1x1 kernels were measured: on one image, and on several
 * larger ones, of not too many channels unless a pass is spared.
 */
static bool is_like_atens(const ptac_call *call)
{
    enum { LEAST_CHANNELS = 8, LARGE = 256, MOST_CHANNELS = 256 };
    const ptac_conv2d *p = call->params;
    const bool is_1x1 = p->kernel_d == 1 && p->kernel_h == 1 && p->kernel_w == 1;

    if (!is_1x1 || p->in_channels < LEAST_CHANNELS || p->out_channels < LEAST_CHANNELS)
        return false;
    return p->n == 1 ||
           (p->result == PTAC_CONV_FORWARD && (int64_t)p->out_h * p->out_w > LARGE &&
            (p->in_channels <= MOST_CHANNELS || ptac_conv2d_is_merged(call)));
}

bool ptac_implicit_pays(const ptac_call *call, const ptac_implicit_stages *stages)
{
    enum { MOST_FEWER = 4, MOST_FEWER_OF_1X1 = 8 };
    const ptac_conv2d *p = call->params;
    const double least = p->result == PTAC_CONV_DATA   ? 0.95
                         : ptac_conv2d_is_merged(call) ? 1
                                                       : 1.1;
    const bool is_1x1 = p->kernel_d == 1 && p->kernel_h == 1 && p->kernel_w == 1;

    if (p->is_transposed)
        return true;
    if (p->result == PTAC_CONV_FORWARD && !is_like_cases(p))
        return false;
    if (is_estimated(call)) {
        const double gain = ptac_implicit_gain(call, stages);

        if (gain > 0)
            return gain >= least;
        if (!is_like_atens(call))
            return false;
    }
    return p->result != PTAC_CONV_FORWARD ||
           p->in_channels <=
               (int64_t)p->out_channels * (is_1x1 ? MOST_FEWER_OF_1X1 : MOST_FEWER);
}

/*
 * Estimates of the gradient of the data are off by more than others, most of all where
 * a stride spreads what comes from groups. Without one a merged call is enough.
 */
bool ptac_implicit_pays_in_any(const ptac_call *call,
                               const ptac_implicit_stages *stages)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const bool is_merged = ptac_conv2d_is_merged(call);
    const bool is_strided = p->stride_h > 1 || p->stride_w > 1;
    const double enough = is_data ? 1.5 : is_merged ? 1.1 : 1.35;
    double gain;

    if (!is_estimated(call) || (is_data && is_strided && p->groups > 1) ||
        (p->result == PTAC_CONV_FORWARD && !is_like_cases(p)))
        return false;
    gain = ptac_implicit_gain(call, stages);
    return gain > 0 ? gain >= enough : is_merged && is_like_atens(call);
}

static void add_pieces(int64_t begin, int64_t end, void *context)
{
    const ptac_implicit *plan = context;

    for (int64_t i = begin; i < end; i++) {
        float sum = 0;

        for (int j = 0; j < plan->n_pieces; j++)
            sum += plan->partial[j * plan->n_weights + i];
        plan->result[i] = sum;
    }
}

static void run_weight(const ptac_call *call, ptac_implicit *plan,
                       const ptac_implicit_stages *stages)
{
    ptac_parallel_for(0, plan->n_pieces, 1, stages->weigh, plan);
    if (plan->n_pieces > plan->n_parts)
        ptac_parallel_for(0, plan->n_weights, 4096, add_pieces, plan);
    if (call->n_outputs > 1)
        ptac_parallel_for(0, call->outputs[1].n_elements, 1, stages->sum_biases,
                          (void *)call);
}

static void run_images(ptac_implicit *plan, const ptac_implicit_stages *stages)
{
    if (plan->is_packed) {
        ptac_parallel_for(0, plan->n_blocks, 1, stages->pack, plan);
        for (int i = 0; i < plan->n_classes; i++)
            for (int t = 0; t < plan->classes[i].n; t++)
                plan->taps[plan->classes[i].first + t].weight = t * plan->rows;
    }
    ptac_parallel_for(0, plan->n_pieces, 1, stages->run, plan);
}

ptac_status ptac_implicit_run(const ptac_call *call, const ptac_implicit_stages *stages)
{
    ptac_implicit plan = ptac_implicit_plan_of(call, stages);
    float *scratch = ptac_scratch_take((size_t)plan.n_scratch * sizeof *scratch);

    if (!scratch)
        return PTAC_NO_MEMORY;
    ptac_implicit_enter(&plan, scratch);
    if (plan.grad)
        run_weight(call, &plan, stages);
    else
        run_images(&plan, stages);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}
