/*
 * max_pool2d_backward_vec.h - the three element types of max_pool2d_backward_tpl.h, and
 * what a row does. Included once by each instruction set's file, after its lanes.
 */
#ifndef PTAC_OPS_POOL_MAX_MAX_POOL2D_BACKWARD_VEC_H
#define PTAC_OPS_POOL_MAX_MAX_POOL2D_BACKWARD_VEC_H

#include "ops/pool/max/max_pool2d_backward.h"
#include "ops/pool/channels.h"

#define OF(name) name##_f32
#include "ops/pool/max/max_pool2d_backward_tpl.h"
#undef OF
#define OF(name) name##_bf16
#include "ops/pool/max/max_pool2d_backward_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/pool/max/max_pool2d_backward_tpl.h"

/*
 * Collecting NHWC gradients costs a comparison for each window over each position, and
 * is faster than scattering them while both are few.
 */
static bool can_collect(const ptac_window2d *window)
{
    return ptac_window_layers(&window->h) * ptac_window_layers(&window->w) <= 9 &&
           window->h.stride * window->w.stride <= 4;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = {tiled_planes_f32, tiled_planes_bf16,
                                          tiled_planes_f64};
    static const ptac_range_fn rows[] = {pixel_rows_f32, pixel_rows_bf16,
                                         pixel_rows_f64};
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    ptac_scatter job = {.call = call};

    if (image->channels_last && can_collect(&p->window)) {
        ptac_parallel_for(0, image->n * image->h,
                          16384 / (image->w * image->channels) + 1, rows[dtype], &job);
        if (job.n_found != call->inputs[0].n_elements)
            ptac_scatter_all(&job);
    } else if (!image->channels_last && ptac_max_pool2d_is_tiled(p)) {
        ptac_parallel_for(0, image->n * image->channels,
                          16384 / (image->h * image->w) + 1, tiled[dtype], &job);
    } else {
        ptac_scatter_all(&job);
    }
    return job.out_of_range ? PTAC_UNSUPPORTED : PTAC_OK;
}

#endif
