/*
 * bilinear2d_ref.c - bilinear interpolation by definition, with sums in
 * double, and its shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "core/scratch.h"
#include "ops/upsample/upsample_plan.h"

/* ATen has another kernel for each, but for narrow rows. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_upsample *p = call->params;

    shape->kind = p->channels_last ? 3 : !p->by_pixel ? 2 : p->w.outputs < 32;
    shape->work = p->n * p->channels * p->h.outputs * p->w.outputs;
    return PTAC_TAKE;
}

PTAC_SHAPES(UPSAMPLE_BILINEAR2D, classify, "nchw_small", "nchw_narrow", "nchw", "nhwc")

/* Rows [begin, end) of y, of all images or planes. */
static void interpolate(int64_t begin, int64_t end, void *context)
{
    const ptac_bilinear_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const int64_t row = p->w.size * pixel;
    const float *x = plan->call->inputs[0].data;
    float *y = (float *)plan->call->outputs[0].data + begin * p->w.outputs * pixel;

    for (int64_t i = begin; i < end; i++) {
        const ptac_linear_place h = plan->rows[i % p->h.outputs];
        const float *plane = x + i / p->h.outputs * p->h.size * row;
        const float *upper = plane + h.first * row, *lower = plane + h.second * row;

        for (int64_t ow = 0; ow < p->w.outputs; ow++) {
            const ptac_linear_place w = plan->columns[ow];
            const int64_t first = w.first * pixel, second = w.second * pixel;
            const double w0 = w.of_first, w1 = w.of_second;

            for (int64_t c = 0; c < pixel; c++)
                *y++ = (float)(h.of_first *
                                   (w0 * upper[first + c] + w1 * upper[second + c]) +
                               h.of_second *
                                   (w0 * lower[first + c] + w1 * lower[second + c]));
        }
    }
}

ptac_status ptac_bilinear2d_by_definition(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    const int64_t n = p->n * (p->channels_last ? 1 : p->channels) * p->h.outputs;
    ptac_bilinear_plan plan;
    bool has_picks;
    void *scratch = ptac_bilinear_plan_make(call, 0, &plan, &has_picks);

    if (!scratch)
        return PTAC_NO_MEMORY;
    ptac_share_rows(n, p->n * p->channels * p->h.outputs * p->w.outputs, interpolate,
                    &plan);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

PTAC_ROW(UPSAMPLE_BILINEAR2D, "scalar", PTAC_CLOSE, 0, ptac_upsample_accepts,
         ptac_bilinear2d_by_definition)
