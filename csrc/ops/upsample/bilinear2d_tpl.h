/*
 * bilinear2d_tpl.h - bilinear interpolation, a vector at a time.
 *
 * Included behind upsample_picks_tpl.h. The includer also defines ISA and NEEDS, see
 * upsample_rows_tpl.h.
 */
#include "core/scratch.h"

/* The elements around a vector of outputs, and weights along both axes. */
typedef struct corners {
    vec x00, x01, x10, x11, h0, h1, w0, w1;
} corners;

INLINE vec interpolated(const corners *c)
{
    const vec upper = v_fma(c->x00, c->w0, v_mul(c->x01, c->w1));
    const vec lower = v_fma(c->x10, c->w0, v_mul(c->x11, c->w1));

    return v_fma(upper, c->h0, v_mul(lower, c->h1));
}

/* NCHW: a row of outputs from two of the image. */
INLINE void interpolate_row(const ptac_bilinear_plan *plan, const float *upper,
                            const float *lower, const ptac_linear_place *h, float *y)
{
    const int n = picked_lanes(&plan->first);

    for (int v = 0; v < plan->first.n_vectors; v++) {
        const int64_t at = ptac_picks_at(&plan->first, v);
        const corners c = {
            .x00 = picked(&plan->first, upper, v),
            .x01 = picked(&plan->second, upper, v),
            .x10 = picked(&plan->first, lower, v),
            .x11 = picked(&plan->second, lower, v),
            .h0 = v_set(h->of_first),
            .h1 = v_set(h->of_second),
            .w0 = v_load(plan->of_first + at),
            .w1 = v_load(plan->of_second + at),
        };

        store_f32(y + at, interpolated(&c), n);
    }
}

/* NCHW: rows [begin, end) of all planes of y. */
TARGET static void interpolate_planes(int64_t begin, int64_t end, void *context)
{
    const ptac_bilinear_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t w = p->w.size;
    float *y = (float *)plan->call->outputs[0].data + begin * p->w.outputs;

    for (int64_t i = begin; i < end; i++, y += p->w.outputs) {
        const ptac_linear_place *h = &plan->rows[i % p->h.outputs];
        const int64_t plane = i / p->h.outputs;
        const float *x =
            (const float *)plan->call->inputs[0].data + plane * p->h.size * w;
        const float *upper = x + h->first * w, *lower = x + h->second * w;

        interpolate_row(plan, upper, lower, h, y);
    }
}

/* NHWC: n channels of a pixel from those of four, of which pixels[] has the first. */
INLINE void interpolate_step(const float *const pixels[4], const ptac_linear_place *h,
                             const ptac_linear_place *w, float *y, int64_t channel,
                             int n)
{
    const corners c = {
        .x00 = load_f32(pixels[0] + channel, n),
        .x01 = load_f32(pixels[1] + channel, n),
        .x10 = load_f32(pixels[2] + channel, n),
        .x11 = load_f32(pixels[3] + channel, n),
        .h0 = v_set(h->of_first),
        .h1 = v_set(h->of_second),
        .w0 = v_set(w->of_first),
        .w1 = v_set(w->of_second),
    };

    store_f32(y + channel, interpolated(&c), n);
}

/* NHWC: rows [begin, end) of all images of y. */
TARGET static void interpolate_pixels(int64_t begin, int64_t end, void *context)
{
    const ptac_bilinear_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t channels = p->channels, row = p->w.size * channels;
    float *y =
        (float *)plan->call->outputs[0].data + begin * p->w.outputs * p->channels;

    for (int64_t i = begin; i < end; i++) {
        const ptac_linear_place *h = &plan->rows[i % p->h.outputs];
        const float *x = (const float *)plan->call->inputs[0].data +
                         i / p->h.outputs * p->h.size * row;

        for (int64_t ow = 0; ow < p->w.outputs; ow++, y += channels) {
            const ptac_linear_place *w = &plan->columns[ow];
            const float *const pixels[4] = {
                x + h->first * row + w->first * channels,
                x + h->first * row + w->second * channels,
                x + h->second * row + w->first * channels,
                x + h->second * row + w->second * channels,
            };

            FOR_LANES(c, n, 0, channels, interpolate_step(pixels, h, w, y, c, n));
        }
    }
}

static ptac_status run_bilinear(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    const int64_t n = p->n * (p->channels_last ? 1 : p->channels) * p->h.outputs;
    const int64_t elements = p->n * p->channels * p->h.outputs * p->w.outputs;
    ptac_bilinear_plan plan;
    bool has_picks;
    void *scratch;

    scratch =
        ptac_bilinear_plan_make(call, p->channels_last ? 0 : LANES, &plan, &has_picks);
    if (!scratch)
        return PTAC_NO_MEMORY;
    if (p->channels_last)
        ptac_share_rows(n, elements, interpolate_pixels, &plan);
    else if (has_picks)
        ptac_share_rows(n, elements, interpolate_planes, &plan);
    else
        ptac_bilinear2d_by_definition(call);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

PTAC_ROW(UPSAMPLE_BILINEAR2D, ISA, PTAC_CLOSE, NEEDS, ptac_upsample_accepts,
         run_bilinear)
