/*
 * avg_pool3d.h - 3-d average pooling, with given windows or adaptive. Level exact.
 *
 * As avg_pool2d.h has it, with the positions of a window added up slab by slab, and
 * adaptive means divided by the depth of their window first. ATen lays all results out
 * as NCDHW, and has no kernel for bfloat16 but the adaptive ones, which we leave to it.
 */
#ifndef PTAC_OPS_POOL_VOLUME_AVG_POOL3D_H
#define PTAC_OPS_POOL_VOLUME_AVG_POOL3D_H

#include "ops/pool/avg/avg_pool2d_backward.h"
#include "ops/pool/volume/window3d.h"

typedef struct ptac_avg_pool3d {
    ptac_avg_pool2d slab; /* is_regular is said of all three axes */
    ptac_depth depth;
} ptac_avg_pool3d;

/* Adaptive pooling of a volume to its outputs. */
void ptac_avg_pool3d_adapt(ptac_avg_pool3d *p);

static inline ptac_extent ptac_avg_extent_d(const ptac_avg_pool3d *p, int64_t od)
{
    return ptac_avg_extent(&p->slab, &p->depth.window, od, p->depth.size,
                           p->depth.outputs);
}

/* What every row accepts. Kinds are those of avg_pool2d.h. */
ptac_reason ptac_avg_pool3d_accepts(const ptac_call *call);
ptac_reason ptac_avg_pool3d_backward_accepts(const ptac_call *call);

/* The definition: what vector rows do not do better themselves they leave to it. */
ptac_status ptac_avg_pool3d_by_definition(const ptac_call *call);
ptac_status ptac_avg_pool3d_backward_by_definition(const ptac_call *call);

#endif
