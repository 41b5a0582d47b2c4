/*
 * avg_pool3d_ref.c - 3-d average pooling and its gradient by their definition, and
 * their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/pool/volume/avg_pool3d.h"

#include "ops/math/elements.h"

#include <string.h>

/* Planes that go together: their sums do not wait for each other. */
enum {
    GROUP = 8,
};

/* The window of one output, and what its sum is divided by, one after the other. */
typedef struct box {
    ptac_extent d, h, w;
    int64_t divisors[3];
} box;

static inline box box_of(const ptac_avg_pool3d *p, int64_t od, int64_t oh, int64_t ow)
{
    const ptac_avg_pool2d *slab = &p->slab;
    box b = {ptac_avg_extent_d(p, od),
             ptac_avg_extent_h(slab, oh),
             ptac_avg_extent_w(slab, ow),
             {1, 1, 1}};
    const int64_t n_d = ptac_avg_counted(slab, &b.d),
                  n_h = ptac_avg_counted(slab, &b.h),
                  n_w = ptac_avg_counted(slab, &b.w);

    if (slab->is_adaptive)
        memcpy(b.divisors, (int64_t[]){n_d, n_h, n_w}, sizeof b.divisors);
    else
        b.divisors[0] = slab->divisor ? slab->divisor : n_d * n_h * n_w;
    return b;
}

#define OF(name) name##_f32
#include "ops/pool/volume/avg_pool3d_ref_tpl.h"
#define OF(name) name##_f64
#include "ops/pool/volume/avg_pool3d_ref_tpl.h"

void ptac_avg_pool3d_adapt(ptac_avg_pool3d *p)
{
    const int64_t size = p->depth.size / p->depth.outputs;

    ptac_avg_pool2d_adapt(&p->slab);
    p->depth.window = (ptac_window){.kernel = size, .stride = size, .dilation = 1};
    p->slab.is_regular &= size * p->depth.outputs == p->depth.size;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;

    /* Copied to NCDHW before a row sees it. */
    shape->kind = ptac_view_suggests_channels_last(&call->inputs[0])
                      ? PTAC_AVG_POOL2D_CHANNELS_LAST
                      : ptac_avg_pool2d_kind(&p->slab);
    shape->work = slab->n * slab->channels * ptac_volume_positions(slab, &p->depth);
    return PTAC_TAKE;
}

ptac_reason ptac_avg_pool3d_accepts(const ptac_call *call)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_F64)
        return PTAC_DTYPE;
    /* Vectors multiply the counts of three axes: a product of two has to be exact. */
    return p->depth.window.kernel * p->slab.window.h.kernel > 1 << 24 ? PTAC_SHAPE
                                                                      : PTAC_TAKE;
}

/* What has no plan goes to stock; not adaptive windows, which ATen is slow to find. */
ptac_reason ptac_avg_pool3d_backward_accepts(const ptac_call *call)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_reason why = ptac_avg_pool3d_accepts(call);
    ptac_spread_plan plan;

    if (why || p->slab.is_adaptive || ptac_plan_spread(&p->slab, &plan))
        return why;
    return PTAC_SHAPE;
}

static ptac_status for_groups(const ptac_call *call, const ptac_range_fn *groups)
{
    const ptac_avg_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;

    ptac_share_out(ptac_parts(slab->n * slab->channels, GROUP),
                   GROUP * ptac_volume_positions(slab, &p->depth),
                   groups[call->inputs[0].dtype == PTAC_F64], (void *)call);
    return PTAC_OK;
}

ptac_status ptac_avg_pool3d_by_definition(const ptac_call *call)
{
    static const ptac_range_fn groups[] = {average_groups_f32, average_groups_f64};

    return for_groups(call, groups);
}

ptac_status ptac_avg_pool3d_backward_by_definition(const ptac_call *call)
{
    static const ptac_range_fn groups[] = {spread_groups_f32, spread_groups_f64};

    return for_groups(call, groups);
}

#define DEFINE_OPERATOR(id, accepts, definition)                                       \
    PTAC_SHAPES(id, classify, "ncdhw", "ncdhw_far", "ncdhw_narrow", "ndhwc")           \
    PTAC_ROW(id, "scalar", PTAC_EXACT, 0, accepts, definition)

DEFINE_OPERATOR(AVG_POOL3D, ptac_avg_pool3d_accepts, ptac_avg_pool3d_by_definition)
DEFINE_OPERATOR(ADAPTIVE_AVG_POOL3D, ptac_avg_pool3d_accepts,
                ptac_avg_pool3d_by_definition)
DEFINE_OPERATOR(AVG_POOL3D_BACKWARD, ptac_avg_pool3d_backward_accepts,
                ptac_avg_pool3d_backward_by_definition)
DEFINE_OPERATOR(ADAPTIVE_AVG_POOL3D_BACKWARD, ptac_avg_pool3d_backward_accepts,
                ptac_avg_pool3d_backward_by_definition)
