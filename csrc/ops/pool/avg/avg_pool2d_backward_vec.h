/*
 * avg_pool2d_backward_vec.h - the three element types of avg_pool2d_backward_tpl.h, and
 * what a row does. Included once by each instruction set's file, after its lanes.
 */
#ifndef PTAC_OPS_POOL_AVG_AVG_POOL2D_BACKWARD_VEC_H
#define PTAC_OPS_POOL_AVG_AVG_POOL2D_BACKWARD_VEC_H

#include "ops/pool/avg/avg_pool2d.h"
#include "ops/pool/channels.h"

#include <string.h>

enum {
    RING_REALS = 16384,
    MOST_OUTPUTS = 1024, /* along a row */
    MOST_LAYERS = 8,
    SLACK = 32, /* REALs that vectors may write behind a row, or read */
};

/*
 * How a row of outputs is laid out for the columns of the image. The sum over a column
 * iw takes [layers[0] + iw], [layers[1] + iw] ... of each row, in that order.
 */
typedef struct spread_plan {
    enum {
        SHIFTED, /* stride 1: once; column by column, windows begin one later */
        DOUBLED, /* stride 2: each share twice; if is_partial, then also with gaps */
        SPREAD,  /* others: over its window, of which no more than two overlap */
    } way;
    bool is_partial;   /* the farthest column of a stride is not in the window */
    int n_rows;        /* in the ring, a power of two */
    int64_t size, row; /* of one copy, of all copies of a row of outputs */
    int64_t lead;      /* places before the first output that hold no window */
    int n_layers;
    int64_t layers[MOST_LAYERS];
} spread_plan;

typedef struct spread_job {
    const ptac_call *call;
    spread_plan plan;
} spread_job;

static void plan_shifts(const ptac_avg_pool2d *p, spread_plan *plan)
{
    const ptac_window *w = &p->window.w;
    const int64_t n_columns = p->image.w + w->padding;
    const int64_t n_places = p->image.out_w * w->stride;

    plan->way = w->stride == 1 ? SHIFTED : DOUBLED;
    plan->is_partial = w->kernel % w->stride != 0;
    plan->lead = (plan->n_layers - 1) * w->stride;
    plan->size = plan->lead + (n_columns > n_places ? n_columns : n_places) + SLACK;
    for (int i = 0; i < plan->n_layers; i++)
        plan->layers[i] = w->padding + i * w->stride;
    if (plan->is_partial)
        plan->layers[0] += plan->size;
}

/* False when too many windows may lie over one column. */
static bool plan_columns(const ptac_avg_pool2d *p, spread_plan *plan)
{
    const ptac_window *w = &p->window.w;
    const int64_t n_outputs = p->image.out_w;
    const int64_t n_layers = p->is_regular ? ptac_window_layers(w) : 2;

    if (p->is_regular && w->stride <= 2 && n_outputs > 2) {
        if (n_layers > MOST_LAYERS)
            return false;
        plan->n_layers = (int)n_layers;
        plan_shifts(p, plan);
        return true;
    }
    /* Irregular windows overlap their neighbours only, while there are few of them. */
    if (n_outputs > 2 && (p->is_regular ? n_layers > 2 : n_outputs > p->image.w))
        return false;
    plan->way = SPREAD;
    plan->n_layers = n_outputs == 1 || n_layers == 1 ? 1 : 2;
    plan->size = p->image.w + SLACK;
    plan->layers[0] = 0;
    plan->layers[1] = plan->size;
    return true;
}

static bool plan_spread(const ptac_avg_pool2d *p, spread_plan *plan)
{
    const ptac_image *image = &p->image;
    int64_t n_over = p->is_regular ? ptac_window_layers(&p->window.h)
                                   : (image->out_h + image->h - 1) / image->h + 1;

    if (image->out_w > MOST_OUTPUTS || !plan_columns(p, plan))
        return false;
    if (n_over > image->out_h)
        n_over = image->out_h;
    plan->row = 2 * plan->size;
    plan->n_rows = 1;
    while (plan->n_rows < n_over + 1 && plan->n_rows < RING_REALS)
        plan->n_rows *= 2;
    return plan->n_rows * plan->row <= RING_REALS;
}

/*
 * Rows [begin, end) of the image, from begin on, lie in the windows of the same rows of
 * outputs. cover is that of an earlier row, or {0, 0}; returns end.
 */
static inline int64_t cover_rows(const ptac_avg_pool2d *p, int64_t begin,
                                 ptac_cover *cover)
{
    int64_t end = p->image.h;

    for (; cover->last < p->image.out_h; cover->last++) {
        const ptac_extent h = ptac_avg_extent_h(p, cover->last);

        if (h.begin > begin) {
            end = h.begin;
            break;
        }
    }
    for (; cover->first < cover->last; cover->first++) {
        const ptac_extent h = ptac_avg_extent_h(p, cover->first);

        if (h.end > begin)
            return h.end < end ? h.end : end;
    }
    return end;
}

#define OF(name) name##_f32
#include "ops/pool/avg/avg_pool2d_backward_tpl.h"
#undef OF
#define OF(name) name##_bf16
#include "ops/pool/avg/avg_pool2d_backward_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/pool/avg/avg_pool2d_backward_tpl.h"

static bool is_whole(const ptac_avg_pool2d *p)
{
    const ptac_extent h = ptac_avg_extent_h(p, 0), w = ptac_avg_extent_w(p, 0);

    return p->image.out_h == 1 && p->image.out_w == 1 && h.begin == 0 && w.begin == 0 &&
           h.end == p->image.h && w.end == p->image.w;
}

/* What cannot be planned is left to stock, but for adaptive windows, which ATen is slow
 * to find. */
static ptac_reason accepts(const ptac_call *call)
{
    const ptac_avg_pool2d *p = call->params;
    const ptac_reason why = ptac_avg_pool2d_accepts(call);
    spread_plan plan;

    if (why || p->image.channels_last || p->is_adaptive || is_whole(p) ||
        plan_spread(p, &plan))
        return why;
    return PTAC_SHAPE;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn whole[] = {whole_planes_f32, whole_planes_bf16,
                                          whole_planes_f64};
    static const ptac_range_fn images[] = {images_f32, images_bf16, images_f64};
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    spread_job job = {.call = call};

    if (image->channels_last)
        ptac_parallel_for(0, image->n, 1, images[dtype], &job);
    else if (is_whole(p) || plan_spread(p, &job.plan))
        ptac_parallel_for(0, image->n * image->channels,
                          16384 / (image->h * image->w) + 1,
                          is_whole(p) ? whole[dtype] : planes[dtype], &job);
    else
        return ptac_avg_pool2d_backward_by_definition(call);
    return PTAC_OK;
}

#endif
