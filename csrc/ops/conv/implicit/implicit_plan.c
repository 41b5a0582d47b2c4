/*
 * implicit_plan.c - how a convolution of any geometry is cut into strips and sums.
 */
#include "ops/conv/implicit/implicit.h"

enum {
    MOST_PLACES = 480,      /* of a strip: a block's sums stay in the first cache */
    MOST_WEIGHED = 960,     /* places for sums over them, which have an end each */
    MOST_COPY = 1 << 16,    /* floats of a strip's copy: a quarter of a mebibyte */
    MOST_PARTIAL = 1 << 17, /* floats of sums that each thread has for itself */
    NEAR = 6144,            /* floats that stay in the first cache beside others */
    FEW_PLACES = 96,        /* of an image: then several are a strip */
    TERMS_AT_ONCE = 48,     /* about so many are summed together, then added up */
    LINES_AT_ONCE = 384,    /* of the first cache, for the source of a block */
    BLOCK = 48,             /* places, of vectors that are multiplied together */
    MOST_SUMS = 49152,      /* floats of sums of a strip: three of sixteen blocks' */
    MOST_COPIES = 8,        /* slots that are copied for a place, of each phase */
};

static ptac_implicit of_call(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_data = p->result == PTAC_CONV_DATA;
    const int taps = p->kernel_d * p->kernel_h * p->kernel_w;
    const int in_channels = p->in_channels / p->groups;
    const int out_channels = p->out_channels / p->groups;
    ptac_implicit plan = {
        .axis = {ptac_implicit_axis_of(is_data, p->d, p->out_d, p->kernel_d,
                                       p->stride_d, p->dilation_d, p->pad_d),
                 ptac_implicit_axis_of(is_data, p->h, p->out_h, p->kernel_h,
                                       p->stride_h, p->dilation_h, p->pad_h),
                 ptac_implicit_axis_of(is_data, p->w, p->out_w, p->kernel_w,
                                       p->stride_w, p->dilation_w, p->pad_w)},
        .n = p->n,
        .groups = p->groups,
        .n_channels = is_data ? out_channels : in_channels,
        .n_rows = is_data ? in_channels : out_channels,
        .source = call->inputs[0].data,
        .weight = call->inputs[1].data,
        .shift = call->n_inputs > 2 ? call->inputs[2].data : NULL,
        .scale = call->n_inputs > 3 ? call->inputs[3].data : NULL,
        .act = p->act,
        .row_step = is_data ? taps : (int64_t)in_channels * taps,
        .channel_step = is_data ? (int64_t)in_channels * taps : taps,
        .group_step = (int64_t)out_channels * in_channels * taps,
    };

    if (p->result == PTAC_CONV_WEIGHT) {
        plan.grad = call->inputs[1].data;
        plan.weight = plan.shift = NULL;
        plan.n_weights = plan.group_step * p->groups;
    }
    plan.source_plane = plan.result_plane = 1;
    for (int i = 0; i < PTAC_N_AXES; i++) {
        plan.source_plane *= plan.axis[i].n_source;
        plan.result_plane *= plan.axis[i].n_results;
    }
    return plan;
}

/* One tap that meets each element: all axes are then one, without rows. */
static void flatten(ptac_implicit *plan)
{
    for (int i = 0; i < PTAC_N_AXES; i++) {
        const ptac_implicit_axis *axis = &plan->axis[i];

        if (axis->n_taps != 1 || axis->source_step != 1 || axis->result_step != 1 ||
            axis->lead != 0 || axis->start != 0 || axis->n_source != axis->n_results)
            return;
    }
    for (int i = 0; i < PTAC_N_AXES; i++) {
        const int n = i == PTAC_N_AXES - 1 ? (int)plan->source_plane : 1;
        ptac_implicit_axis *axis = &plan->axis[i];

        axis->n_places = axis->n_source = axis->n_results = n;
    }
    plan->is_whole = plan->n == 1 || plan->source_plane > FEW_PLACES;
}

/* Floats in whole cache lines. */
static int64_t lines(int64_t floats)
{
    return ptac_parts(floats, 16) * 16;
}

/* Of a strip, with a vector that its last row may go over. */
static int64_t copy_size_of(const ptac_implicit *plan)
{
    return plan->is_whole ? 0 : lines(plan->n_channels * plan->plane_size + 16);
}

static int64_t copy_of(const ptac_implicit *plan)
{
    int64_t size = plan->n_channels * (int64_t)plan->images;

    for (int i = 0; i < PTAC_N_AXES; i++)
        size *= plan->axis[i].n_phases * (plan->strip[i] + plan->axis[i].reach);
    return size;
}

int64_t ptac_implicit_places(const ptac_implicit *plan)
{
    int64_t n = plan->images;

    for (int i = 0; i < PTAC_N_AXES; i++)
        n = (n - 1) * (plan->strip[i] + plan->axis[i].reach) + plan->strip[i];
    return n;
}

/* As long a run along one axis, or of images, as a strip has room for. */
static void extend(ptac_implicit *plan, int *n, int64_t most, bool is_copied)
{
    int64_t parts;

    *n = 1;
    while (*n < most) {
        const int before = *n;

        *n = (int)ptac_least(2 * (int64_t)*n, most);
        if (ptac_implicit_places(plan) > plan->most_places ||
            (is_copied && copy_of(plan) > plan->most_copy)) {
            int low = before, high = *n; /* low fits */

            while (high - low > 1) {
                *n = low + (high - low) / 2;
                if (ptac_implicit_places(plan) > plan->most_places ||
                    (is_copied && copy_of(plan) > plan->most_copy))
                    high = *n;
                else
                    low = *n;
            }
            *n = low;
            break;
        }
    }
    parts = ptac_parts(most, *n);
    *n = (int)ptac_parts(most, parts);
}

static void cut_strips(ptac_implicit *plan)
{
    plan->most_places = plan->grad ? MOST_WEIGHED : MOST_PLACES;
    plan->most_copy = plan->grad ? 2 * MOST_COPY : MOST_COPY;
    plan->images = 1;
    for (int i = 0; i < PTAC_N_AXES; i++)
        plan->strip[i] = 1;
    for (int i = PTAC_N_AXES - 1; i >= 0; i--) {
        extend(plan, &plan->strip[i], plan->axis[i].n_places, !plan->is_whole);
        if (plan->strip[i] < plan->axis[i].n_places)
            break;
        if (i == 0 && !plan->is_whole)
            extend(plan, &plan->images, plan->n, true);
    }
    plan->n_all = plan->n_images = ptac_parts(plan->n, plan->images);
    plan->phase_size = plan->images;
    for (int i = 0; i < PTAC_N_AXES; i++) {
        plan->n_strips[i] = ptac_parts(plan->axis[i].n_places, plan->strip[i]);
        plan->n_all *= plan->n_strips[i];
        plan->slots[i] = plan->strip[i] + plan->axis[i].reach;
        plan->phase_size *= plan->slots[i];
    }
    plan->plane_size = plan->phase_size;
    for (int i = 0; i < PTAC_N_AXES; i++)
        plan->plane_size *= plan->axis[i].n_phases;
}

/* Cache lines of a channel that a block of places meets. */
static int64_t lines_of(const ptac_implicit *plan)
{
    const ptac_implicit_axis *axis = plan->axis;
    int64_t runs = axis[2].n_phases;

    for (int i = 0; i < PTAC_N_AXES - 1; i++)
        runs *= ptac_parts(axis[i].n_taps, axis[i].result_step);
    return runs * ((BLOCK - 1 + axis[2].reach) / 16 + 2);
}

/* Where sums are cut decides their bits, in which the number of images has no part. */
int ptac_implicit_chunk(const ptac_implicit *plan, int n_taps)
{
    const int most = n_taps > 0 ? (TERMS_AT_ONCE + n_taps / 2) / n_taps : 1;

    return (int)ptac_parts(plan->n_channels,
                           ptac_parts(plan->n_channels, most > 1 ? most : 1));
}

static void cut_items(ptac_implicit *plan, const ptac_implicit_stages *stages,
                      int n_threads)
{
    const int64_t n = plan->n_all * plan->groups;
    const int blocks = (int)ptac_parts(plan->n_rows, stages->rows);

    plan->rows = stages->rows;
    plan->n_near = (int)(LINES_AT_ONCE / lines_of(plan));
    /* Few strips are shared out by rows: threads then copy one each of their own. */
    plan->n_parts = n < 4 * n_threads && n % n_threads != 0
                        ? (int)ptac_least(n_threads, blocks)
                        : 1;
    plan->n_items = n * plan->n_parts;
    plan->n_pieces = (int)ptac_least(n_threads, plan->n_items);
    plan->copy_size = copy_size_of(plan);
    plan->sums_step = lines(ptac_implicit_places(plan) + 16);
    plan->most_rows = (int)(MOST_SUMS / plan->sums_step);
    if (plan->most_rows < plan->rows)
        plan->most_rows = plan->rows;
    plan->most_rows = (int)ptac_least(plan->most_rows, blocks * plan->rows);
    if (plan->is_whole)
        plan->most_rows = blocks * plan->rows;
    plan->n_private = plan->copy_size;
    if (!plan->is_whole)
        plan->n_private += plan->most_rows * plan->sums_step;
    plan->is_packed = plan->axis[2].is_data;
}

/* The same for the gradient of a weight, whose strips are sums that go on. */
static void cut_sums(ptac_implicit *plan, int n_threads)
{
    const int64_t most_rows = ptac_parts(plan->n_rows, 4);

    plan->sums_step = lines(ptac_implicit_places(plan) + 16);
    plan->n_parts = plan->n_weights > MOST_PARTIAL || plan->n_all < n_threads
                        ? (int)ptac_least(n_threads, most_rows)
                        : 1;
    plan->n_pieces =
        plan->n_parts > 1 ? plan->n_parts : (int)ptac_least(n_threads, plan->n_all);
    plan->n_near = (int)(NEAR / (plan->is_whole ? MOST_WEIGHED : plan->plane_size));
    if (plan->n_near < 1)
        plan->n_near = 1;
    plan->most_rows =
        (int)ptac_least(ptac_parts(MOST_SUMS, plan->sums_step) * 4, plan->n_rows);
    plan->copy_size = copy_size_of(plan);
    plan->n_private = plan->copy_size;
    if (!plan->is_whole)
        plan->n_private += plan->most_rows * plan->sums_step;
}

/* Floats that hold n elements of a size. */
static int64_t floats_of(int64_t n, size_t size)
{
    return lines(ptac_parts(n * (int64_t)size, sizeof(float)));
}

static ptac_implicit in_strips(const ptac_call *call)
{
    ptac_implicit plan = of_call(call);

    plan.n_taps = plan.n_classes = 1;
    for (int i = 0; i < PTAC_N_AXES; i++) {
        plan.n_taps *= plan.axis[i].n_taps;
        plan.n_classes *= plan.axis[i].result_step;
    }
    flatten(&plan);
    cut_strips(&plan);
    return plan;
}

bool ptac_implicit_copies_much(const ptac_call *call)
{
    const ptac_implicit plan = in_strips(call);
    int64_t n = plan.images;

    if (plan.is_whole)
        return false;
    for (int i = 0; i < PTAC_N_AXES; i++)
        n *= (int64_t)plan.strip[i] * plan.axis[i].n_phases;
    return plan.plane_size > MOST_COPIES * n;
}

ptac_implicit ptac_implicit_plan_of(const ptac_call *call,
                                    const ptac_implicit_stages *stages)
{
    ptac_implicit plan = in_strips(call);

    plan.result = call->outputs[0].data;
    if (plan.grad)
        cut_sums(&plan, call->n_threads);
    else
        cut_items(&plan, stages, call->n_threads);
    plan.n_blocks = plan.groups * ptac_parts(plan.n_rows, stages->rows);
    plan.classes_at = floats_of(plan.n_taps, sizeof *plan.taps);
    plan.packed_at = plan.classes_at + floats_of(plan.n_classes, sizeof *plan.classes);
    plan.partial_at = plan.packed_at;
    if (plan.is_packed)
        plan.partial_at +=
            lines(plan.n_blocks * stages->rows * plan.n_channels * plan.n_taps);
    plan.private_at = plan.partial_at;
    if (plan.n_pieces > plan.n_parts)
        plan.private_at += plan.grad ? lines(plan.n_pieces * plan.n_weights) : 0;
    plan.n_scratch = plan.private_at + plan.n_pieces * plan.n_private;
    return plan;
}

void ptac_implicit_enter(ptac_implicit *plan, float *scratch)
{
    plan->taps = (ptac_implicit_tap *)scratch;
    plan->classes = (ptac_implicit_class *)(scratch + plan->classes_at);
    plan->packed = scratch + plan->packed_at;
    plan->partial = scratch + plan->partial_at;
    plan->scratch = scratch + plan->private_at;
    ptac_implicit_list_taps(plan);
    for (int i = 0; i < plan->n_classes; i++)
        plan->classes[i].chunk = ptac_implicit_chunk(plan, plan->classes[i].n);
}
