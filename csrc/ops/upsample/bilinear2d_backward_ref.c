/*
 * bilinear2d_backward_ref.c - gradients of bilinear interpolation by definition, in the
 * order in which ATen adds them up, and their shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "core/scratch.h"
#include "ops/upsample/upsample_plan.h"

#include <string.h>

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_upsample *p = call->params;
    const int64_t planes = p->n * p->channels;

    shape->kind = p->channels_last ? 2 : planes < 16;
    shape->work = planes * p->h.outputs * p->w.outputs;
    return PTAC_TAKE;
}

PTAC_SHAPES(UPSAMPLE_BILINEAR2D_BACKWARD, classify, "nchw", "nchw_few", "nhwc")

/* x += weight * g, of n elements. */
static void add(const ptac_upsample *p, float *x, float weight, const float *g,
                int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = p->is_fused ? fmaf(weight, g[i], x[i]) : x[i] + weight * g[i];
}

/* A plane of x, or an image of pixels, from that of gradients. */
static void spread(const ptac_bilinear_gradient_plan *plan, const float *g, float *x,
                   int64_t pixel)
{
    const ptac_upsample *p = plan->call->params;
    const int64_t row = p->w.size * pixel;

    memset(x, 0, (size_t)(p->h.size * row) * sizeof *x);
    for (int64_t oh = 0; oh < p->h.outputs; oh++) {
        const ptac_linear_place h = plan->rows[oh];
        float *upper = x + h.first * row, *lower = x + h.second * row;

        for (int64_t ow = 0; ow < p->w.outputs; ow++, g += pixel) {
            const ptac_linear_place w = plan->columns[ow];
            const int64_t first = w.first * pixel, second = w.second * pixel;

            add(p, upper + first, h.of_first * w.of_first, g, pixel);
            add(p, upper + second, h.of_first * w.of_second, g, pixel);
            add(p, lower + first, h.of_second * w.of_first, g, pixel);
            add(p, lower + second, h.of_second * w.of_second, g, pixel);
        }
    }
}

/* Planes or images [begin, end). */
static void spread_some(int64_t begin, int64_t end, void *context)
{
    const ptac_bilinear_gradient_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const float *g = plan->call->inputs[0].data;
    float *x = plan->call->outputs[0].data;

    for (int64_t i = begin; i < end; i++)
        spread(plan, g + i * p->h.outputs * p->w.outputs * pixel,
               x + i * p->h.size * p->w.size * pixel, pixel);
}

ptac_status ptac_bilinear2d_backward_by_definition(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    const int64_t n = p->n * (p->channels_last ? 1 : p->channels);
    ptac_bilinear_gradient_plan plan;
    void *scratch = ptac_bilinear_gradient_plan_make(call, &plan);

    if (!scratch)
        return PTAC_NO_MEMORY;
    ptac_share_rows(n, p->n * p->channels * p->h.outputs * p->w.outputs, spread_some,
                    &plan);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

PTAC_ROW(UPSAMPLE_BILINEAR2D_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_upsample_accepts,
         ptac_bilinear2d_backward_by_definition)
