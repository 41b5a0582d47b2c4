/*
 * nearest2d_ref.c - the nearest elements and their gradients by definition, and their
 * shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "core/scratch.h"
#include "ops/upsample/upsample_plan.h"

enum {
    NCHW,
    NARROW, /* rows of outputs below 32 */
    NHWC,
};

static int kind_of(const ptac_upsample *p)
{
    if (p->channels_last)
        return NHWC;
    return p->w.outputs < 32 ? NARROW : NCHW;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_upsample *p = call->params;

    shape->kind = kind_of(p);
    shape->work = p->n * p->channels * p->h.outputs * p->w.outputs;
    return PTAC_TAKE;
}

/* Two columns an element are added up as vectors. */
static ptac_reason classify_gradient(const ptac_call *call, ptac_shape *shape)
{
    const ptac_upsample *p = call->params;
    const ptac_reason why = classify(call, shape);

    if (shape->kind != NHWC && p->w.outputs != 2 * p->w.size)
        shape->kind += NHWC + 1;
    return why;
}

PTAC_SHAPES(UPSAMPLE_NEAREST2D, classify, "nchw", "nchw_narrow", "nhwc")
PTAC_SHAPES(UPSAMPLE_NEAREST2D_BACKWARD, classify_gradient, "nchw_2", "nchw_2_narrow",
            "nhwc", "nchw", "nchw_narrow")

ptac_reason ptac_upsample_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

/* Rows [begin, end) of x, of all images or planes: those of y that come from them. */
static void spread_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const float *x = plan->call->inputs[0].data;
    float *y = plan->call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const int64_t h = i % p->h.size, plane = i / p->h.size * p->h.outputs;
        const float *from = x + i * p->w.size * pixel;

        for (int64_t oh = plan->first_row[h]; oh < plan->first_row[h + 1]; oh++) {
            float *to = y + (plane + oh) * p->w.outputs * pixel;

            for (int64_t ow = 0; ow < p->w.outputs; ow++)
                for (int64_t c = 0; c < pixel; c++)
                    to[ow * pixel + c] = from[plan->columns[ow] * pixel + c];
        }
    }
}

static float gather(const ptac_nearest_plan *plan, const float *grad, int64_t h,
                    int64_t w, int64_t pixel)
{
    const ptac_upsample *p = plan->call->params;
    float sum = 0;

    for (int64_t oh = plan->first_row[h]; oh < plan->first_row[h + 1]; oh++)
        for (int64_t ow = plan->first_column[w]; ow < plan->first_column[w + 1]; ow++)
            sum += grad[(oh * p->w.outputs + ow) * pixel];
    return sum;
}

/* Rows [begin, end) of grad_x, of all images or planes. */
static void gather_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const int64_t plane = p->h.outputs * p->w.outputs * pixel;
    const float *grad = plan->call->inputs[0].data;
    float *out = plan->call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const float *from = grad + i / p->h.size * plane;
        float *to = out + i * p->w.size * pixel;

        for (int64_t w = 0; w < p->w.size; w++)
            for (int64_t c = 0; c < pixel; c++)
                to[w * pixel + c] = gather(plan, from + c, i % p->h.size, w, pixel);
    }
}

static ptac_status run(const ptac_call *call, ptac_range_fn body)
{
    const ptac_upsample *p = call->params;
    const int64_t n = p->n * (p->channels_last ? 1 : p->channels) * p->h.size;
    ptac_nearest_plan plan;
    bool has_picks;
    void *scratch = ptac_nearest_plan_make(call, 0, &plan, &has_picks);

    if (!scratch)
        return PTAC_NO_MEMORY;
    ptac_share_rows(n, p->n * p->channels * p->h.outputs * p->w.outputs, body, &plan);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

ptac_status ptac_nearest2d_by_definition(const ptac_call *call)
{
    return run(call, spread_rows);
}

ptac_status ptac_nearest2d_backward_by_definition(const ptac_call *call)
{
    return run(call, gather_rows);
}

PTAC_ROW(UPSAMPLE_NEAREST2D, "scalar", PTAC_EXACT, 0, ptac_upsample_accepts,
         ptac_nearest2d_by_definition)
PTAC_ROW(UPSAMPLE_NEAREST2D_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_upsample_accepts,
         ptac_nearest2d_backward_by_definition)
