/*
 * max_pool2d_vec.h - the three element types of max_pool2d_tpl.h, and what a row does.
 *
 * Included once by each instruction set's file, after its lanes.
 */
#ifndef PTAC_OPS_POOL_MAX_MAX_POOL2D_VEC_H
#define PTAC_OPS_POOL_MAX_MAX_POOL2D_VEC_H

#include "ops/pool/max/max_pool2d.h"
#include "ops/pool/channels.h"

#include "core/host.h"

#include <math.h>

#define OF(name) name##_f32
#include "ops/pool/max/max_pool2d_tpl.h"
#undef OF
#define OF(name) name##_bf16
#include "ops/pool/max/max_pool2d_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/pool/max/max_pool2d_tpl.h"

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;

    if (call->inputs[0].dtype > PTAC_F64)
        return PTAC_DTYPE;
    return p->window.w.kernel <= PTAC_MAX_TAPS ? PTAC_TAKE : PTAC_SHAPE;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = {tiled_planes_f32, tiled_planes_bf16,
                                          tiled_planes_f64};
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn rows[] = {pixel_rows_f32, pixel_rows_bf16,
                                         pixel_rows_f64};
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_parallel_for(0, image->n * image->out_h,
                          16384 / (image->out_w * image->channels) + 1, rows[dtype],
                          (void *)call);
    else
        ptac_parallel_for(
            0, image->n * image->channels, 16384 / (image->h * image->w) + 1,
            ptac_max_pool2d_is_tiled(p) ? tiled[dtype] : planes[dtype], (void *)call);
    return PTAC_OK;
}

#endif
