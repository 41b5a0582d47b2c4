/*
 * avg_pool2d_backward.c - laying average pooling's gradient out for vectors.
 */
#include "ops/pool/avg/avg_pool2d_backward.h"

enum {
    SLACK = 32, /* REALs that vectors may write behind a row, or read */
};

static void plan_shifts(const ptac_avg_pool2d *p, ptac_spread_plan *plan)
{
    const ptac_window *w = &p->window.w;
    const int64_t n_columns = p->image.w + w->padding;
    const int64_t n_places = p->image.out_w * w->stride;

    plan->way = w->stride == 1 ? PTAC_SHIFTED : PTAC_DOUBLED;
    plan->is_partial = w->kernel % w->stride != 0;
    plan->lead = (plan->n_layers - 1) * w->stride;
    plan->size = plan->lead + (n_columns > n_places ? n_columns : n_places) + SLACK;
    for (int i = 0; i < plan->n_layers; i++)
        plan->layers[i] = w->padding + i * w->stride;
    if (plan->is_partial)
        plan->layers[0] += plan->size;
}

/* False when too many windows may lie over one column. */
static bool plan_columns(const ptac_avg_pool2d *p, ptac_spread_plan *plan)
{
    const ptac_window *w = &p->window.w;
    const int64_t n_outputs = p->image.out_w;
    const int64_t n_layers = p->is_regular ? ptac_window_layers(w) : 2;

    if (p->is_regular && w->stride <= 2 && n_outputs > 2) {
        if (n_layers > PTAC_MOST_LAYERS)
            return false;
        plan->n_layers = (int)n_layers;
        plan_shifts(p, plan);
        return true;
    }
    /* Irregular windows overlap their neighbours only, while there are few of them. */
    if (n_outputs > 2 && (p->is_regular ? n_layers > 2 : n_outputs > p->image.w))
        return false;
    plan->way = PTAC_SPREAD;
    plan->n_layers = n_outputs == 1 || n_layers == 1 ? 1 : 2;
    plan->size = p->image.w + SLACK;
    plan->layers[0] = 0;
    plan->layers[1] = plan->size;
    return true;
}

bool ptac_plan_spread(const ptac_avg_pool2d *p, ptac_spread_plan *plan)
{
    const ptac_image *image = &p->image;
    const int64_t n_over = p->is_regular ? ptac_window_layers(&p->window.h)
                                         : ptac_parts(image->out_h, image->h) + 1;

    if (image->out_w > PTAC_MOST_OUTPUTS || !plan_columns(p, plan))
        return false;
    plan->row = 2 * plan->size;
    plan->n_rows = 1;
    while (plan->n_rows <= ptac_least(n_over, image->out_h) &&
           plan->n_rows < PTAC_RING_REALS)
        plan->n_rows *= 2;
    return plan->n_rows * plan->row <= PTAC_RING_REALS;
}

bool ptac_is_whole(const ptac_avg_pool2d *p)
{
    const ptac_extent h = ptac_avg_extent_h(p, 0), w = ptac_avg_extent_w(p, 0);

    return p->image.out_h == 1 && p->image.out_w == 1 && h.begin == 0 && w.begin == 0 &&
           h.end == p->image.h && w.end == p->image.w;
}

/* What has no plan goes to stock; not adaptive windows, which ATen is slow to find. */
ptac_reason ptac_avg_pool2d_backward_accepts(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_reason why = ptac_avg_pool2d_accepts(call);
    ptac_spread_plan plan;

    if (why || p->image.channels_last || p->is_adaptive || ptac_is_whole(p) ||
        ptac_plan_spread(p, &plan))
        return why;
    return PTAC_SHAPE;
}
