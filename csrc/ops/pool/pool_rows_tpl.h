/*
 * pool_rows_tpl.h - the vector rows of pooling.
 *
 * The includer defines
 *
 *   the words of typed_lanes.h   by including ops/math/typed_<isa>.h
 *   ISA                          string: the rows' name
 *   NEEDS                        PTAC_CPU_*: what the CPU must have
 */
#define OF(name) name##_f32
#include "ops/pool/pool_tpl.h"
#define OF(name) name##_bf16
#define IS_BF16
#include "ops/pool/pool_tpl.h"
#undef IS_BF16
#define OF(name) name##_f64
#include "ops/pool/pool_tpl.h"

static ptac_status average(const ptac_call *call)
{
    static const ptac_range_fn planes[] = PTAC_OF_TYPES(average_planes);
    static const ptac_range_fn rows[] = PTAC_OF_TYPES(average_rows);
    const ptac_avg_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_share_out(image->n * image->out_h, image->out_w * image->channels,
                       rows[dtype], (void *)call);
    else if (ptac_avg_pool2d_kind(p) == PTAC_AVG_POOL2D_NCHW &&
             p->window.w.kernel <= PTAC_MAX_TAPS)
        ptac_share_planes(image, planes[dtype], (void *)call);
    else
        return ptac_avg_pool2d_by_definition(call);
    return PTAC_OK;
}

static ptac_status spread_averages(const ptac_call *call)
{
    static const ptac_range_fn planes[] = PTAC_OF_TYPES(spread_planes);
    static const ptac_range_fn whole[] = PTAC_OF_TYPES(spread_whole_planes);
    static const ptac_range_fn images[] = PTAC_OF_TYPES(spread_images);
    const ptac_avg_pool2d *p = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;
    ptac_spread_job job = {.call = call};

    if (p->image.channels_last)
        ptac_parallel_for(0, p->image.n, 1, images[dtype], &job);
    else if (ptac_is_whole(p))
        ptac_share_planes(&p->image, whole[dtype], &job);
    else if (ptac_plan_spread(p, &job.plan))
        ptac_share_planes(&p->image, planes[dtype], &job);
    else
        return ptac_avg_pool2d_backward_by_definition(call);
    return PTAC_OK;
}

static ptac_reason takes_maxima(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;

    return p->window.w.kernel <= PTAC_MAX_TAPS ? ptac_max_pool2d_accepts(call)
                                               : PTAC_SHAPE;
}

static ptac_status maxima(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = PTAC_OF_TYPES(max_tiled_planes);
    static const ptac_range_fn planes[] = PTAC_OF_TYPES(max_planes);
    static const ptac_range_fn rows[] = PTAC_OF_TYPES(max_rows);
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_share_out(image->n * image->out_h, image->out_w * image->channels,
                       rows[dtype], (void *)call);
    else
        ptac_share_planes(image,
                          ptac_max_pool2d_is_tiled(p) ? tiled[dtype] : planes[dtype],
                          (void *)call);
    return PTAC_OK;
}

/* NHWC: collecting compares each window at each position, faster while both are few. */
static bool can_collect(const ptac_window2d *window)
{
    return ptac_window_layers(&window->h) * ptac_window_layers(&window->w) <= 9 &&
           window->h.stride * window->w.stride <= 4;
}

static ptac_status scatter_maxima(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = PTAC_OF_TYPES(scatter_tiled_planes);
    static const ptac_range_fn rows[] = PTAC_OF_TYPES(collect_pixel_rows);
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    ptac_scatter job = ptac_scatter_of(call, image, 1, 1);

    if (image->channels_last && can_collect(&p->window))
        ptac_share_out(image->n * image->h, image->w * image->channels, rows[dtype],
                       &job);
    else if (!image->channels_last && ptac_max_pool2d_is_tiled(p))
        ptac_share_planes(image, tiled[dtype], &job);
    return job.n_found == call->inputs[0].n_elements ? PTAC_OK : ptac_scatter_all(&job);
}

static ptac_status volume_maxima(const ptac_call *call)
{
    static const ptac_range_fn volumes[] = PTAC_OF_TYPES(max_volumes);
    static const ptac_range_fn rows[] = PTAC_OF_TYPES(max_volume_rows);
    const ptac_max_pool3d *p = call->params;
    const ptac_image *slab = &p->slab.image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (slab->channels_last)
        ptac_share_out(slab->n * p->depth.outputs * slab->out_h,
                       slab->out_w * slab->channels, rows[dtype], (void *)call);
    else if (ptac_max_pool3d_rows_at_once(p) > 0)
        ptac_share_volumes(slab, &p->depth, volumes[dtype], (void *)call);
    else
        return ptac_max_pool3d_by_definition(call);
    return PTAC_OK;
}

static ptac_status average_volumes(const ptac_call *call)
{
    const ptac_avg_pool3d *p = call->params;

    if (ptac_avg_pool2d_kind(&p->slab) != PTAC_AVG_POOL2D_NCHW ||
        p->slab.window.w.kernel > PTAC_MAX_TAPS)
        return ptac_avg_pool3d_by_definition(call);
    ptac_share_volumes(&p->slab.image, &p->depth,
                       call->inputs[0].dtype == PTAC_F32 ? average_volumes_f32
                                                         : average_volumes_f64,
                       (void *)call);
    return PTAC_OK;
}

static ptac_status spread_volume_averages(const ptac_call *call)
{
    const ptac_avg_pool3d *p = call->params;
    ptac_spread_job job = {.call = call};

    if (ptac_avg_pool2d_kind(&p->slab) == PTAC_AVG_POOL2D_NARROW ||
        !ptac_plan_spread(&p->slab, &job.plan))
        return ptac_avg_pool3d_backward_by_definition(call);
    job.plan.n_rows = 1; /* each is added to the volume at once */
    ptac_share_volumes(&p->slab.image, &p->depth,
                       call->inputs[0].dtype == PTAC_F32 ? spread_volumes_f32
                                                         : spread_volumes_f64,
                       &job);
    return PTAC_OK;
}

#define ROW(id, takes, run) PTAC_ROW(id, ISA, PTAC_EXACT, NEEDS, takes, run)

ROW(AVG_POOL2D, ptac_avg_pool2d_accepts, average)
ROW(ADAPTIVE_AVG_POOL2D, ptac_avg_pool2d_accepts, average)
ROW(AVG_POOL2D_BACKWARD, ptac_avg_pool2d_backward_accepts, spread_averages)
ROW(ADAPTIVE_AVG_POOL2D_BACKWARD, ptac_avg_pool2d_backward_accepts, spread_averages)
ROW(MAX_POOL2D, takes_maxima, maxima)
ROW(MAX_POOL2D_BACKWARD, ptac_max_pool2d_accepts, scatter_maxima)
ROW(AVG_POOL3D, ptac_avg_pool3d_accepts, average_volumes)
ROW(ADAPTIVE_AVG_POOL3D, ptac_avg_pool3d_accepts, average_volumes)
ROW(AVG_POOL3D_BACKWARD, ptac_avg_pool3d_backward_accepts, spread_volume_averages)
ROW(ADAPTIVE_AVG_POOL3D_BACKWARD, ptac_avg_pool3d_backward_accepts,
    spread_volume_averages)
ROW(MAX_POOL3D, ptac_max_pool2d_accepts, volume_maxima)
