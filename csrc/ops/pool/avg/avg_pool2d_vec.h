/*
 * avg_pool2d_vec.h - the three element types of avg_pool2d_tpl.h, and what a row does.
 *
 * Included once by each instruction set's file, after its lanes.
 */
#ifndef PTAC_OPS_POOL_AVG_AVG_POOL2D_VEC_H
#define PTAC_OPS_POOL_AVG_AVG_POOL2D_VEC_H

#include "ops/pool/avg/avg_pool2d.h"
#include "ops/pool/channels.h"

#define OF(name) name##_f32
#include "ops/pool/avg/avg_pool2d_tpl.h"
#undef OF
#define OF(name) name##_bf16
#include "ops/pool/avg/avg_pool2d_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/pool/avg/avg_pool2d_tpl.h"

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn rows[] = {pixel_rows_f32, pixel_rows_bf16,
                                         pixel_rows_f64};
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_parallel_for(0, image->n * image->out_h,
                          16384 / (image->out_w * image->channels) + 1, rows[dtype],
                          (void *)call);
    else if (ptac_avg_pool2d_kind(p) == PTAC_AVG_POOL2D_NCHW &&
             p->window.w.kernel <= PTAC_MAX_TAPS)
        ptac_parallel_for(0, image->n * image->channels,
                          16384 / (image->h * image->w) + 1, planes[dtype],
                          (void *)call);
    else
        return ptac_avg_pool2d_by_definition(call);
    return PTAC_OK;
}

#endif
