/*
 * nearest2d_tpl.h - the nearest elements and their gradients, a vector at a time.
 *
 * Included behind upsample_picks_tpl.h. The includer also defines ISA and NEEDS, see
 * upsample_rows_tpl.h.
 */
#include "core/scratch.h"

/* NCHW: rows [begin, end) of all planes of x; each is picked once for all its rows. */
TARGET static void spread_planes(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t w = p->w.size, out_w = p->w.outputs;
    const int n = picked_lanes(&plan->picks);
    const float *x = plan->call->inputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const int32_t *rows = plan->first_row + i % p->h.size;
        float *y = (float *)plan->call->outputs[0].data +
                   (i / p->h.size * p->h.outputs + rows[0]) * out_w;

        for (int v = 0; v < plan->picks.n_vectors; v++) {
            const vec outputs = picked(&plan->picks, x + i * w, v);
            float *to = y + ptac_picks_at(&plan->picks, v);

            for (int32_t oh = rows[0]; oh < rows[1]; oh++, to += out_w)
                store_f32(to, outputs, n);
        }
    }
}

/* NHWC: rows [begin, end) of all images of x. */
TARGET static void spread_pixels(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t channels = p->channels, row = p->w.outputs * channels;

    for (int64_t i = begin; i < end; i++) {
        const int32_t *rows = plan->first_row + i % p->h.size;
        const int n_rows = rows[1] - rows[0];
        const float *x =
            (const float *)plan->call->inputs[0].data + i * p->w.size * channels;
        float *y = (float *)plan->call->outputs[0].data +
                   (i / p->h.size * p->h.outputs + rows[0]) * row;

        for (int64_t ow = 0; ow < p->w.outputs; ow++, y += channels) {
            const float *pixel = x + plan->columns[ow] * channels;

            FOR_LANES(c, n, 0, channels, {
                const vec v = load_f32(pixel + c, n);

                for (int r = 0; r < n_rows; r++)
                    store_f32(y + r * row + c, v, n);
            });
        }
    }
}

/* NCHW, two columns an element: rows [begin, end) of all planes of grad_x. */
TARGET static void gather_planes(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t w = p->w.size, out_w = p->w.outputs;
    const int n = (int)ptac_least(w, LANES);

    for (int64_t i = begin; i < end; i++) {
        const int32_t *rows = plan->first_row + i % p->h.size;
        const float *grad = (const float *)plan->call->inputs[0].data +
                            (i / p->h.size * p->h.outputs + rows[0]) * out_w;
        float *out = (float *)plan->call->outputs[0].data + i * w;

        for (int64_t at = 0; at < w; at += LANES) {
            const int64_t j = at ? ptac_least(at, w - LANES) : 0;
            const float *from = grad + 2 * j;
            vec sum = v_zero(), even, odd;

            for (int32_t oh = rows[0]; oh < rows[1]; oh++, from += out_w) {
                load_pairs_f32(from, n, &even, &odd);
                sum = v_add(v_add(sum, even), odd);
            }
            store_f32(out + j, sum, n);
        }
    }
}

/* n channels of an element's gradients, of n_rows rows of n_columns. */
INLINE void gather_step(const float *grad, int64_t row, int64_t pixel, int n_rows,
                        int n_columns, float *out, int n)
{
    vec sum = v_zero();

    for (int r = 0; r < n_rows; r++)
        for (int k = 0; k < n_columns; k++)
            sum = v_add(sum, load_f32(grad + r * row + k * pixel, n));
    store_f32(out, sum, n);
}

/* NHWC: rows [begin, end) of all images of grad_x. */
TARGET static void gather_pixels(int64_t begin, int64_t end, void *context)
{
    const ptac_nearest_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t channels = p->channels, row = p->w.outputs * channels;

    for (int64_t i = begin; i < end; i++) {
        const int32_t *rows = plan->first_row + i % p->h.size;
        const float *grad = (const float *)plan->call->inputs[0].data +
                            (i / p->h.size * p->h.outputs + rows[0]) * row;
        float *out = (float *)plan->call->outputs[0].data + i * p->w.size * channels;

        for (int64_t w = 0; w < p->w.size; w++, out += channels) {
            const int32_t *columns = plan->first_column + w;
            const float *from = grad + columns[0] * channels;

            FOR_LANES(c, n, 0, channels,
                      gather_step(from + c, row, channels, rows[1] - rows[0],
                                  columns[1] - columns[0], out + c, n));
        }
    }
}

static ptac_status run_rows(const ptac_call *call, const ptac_nearest_plan *plan,
                            ptac_range_fn body)
{
    const ptac_upsample *p = call->params;
    const int64_t n = p->n * (p->channels_last ? 1 : p->channels) * p->h.size;

    ptac_share_rows(n, p->n * p->channels * p->h.outputs * p->w.outputs, body,
                    (void *)(uintptr_t)plan);
    return PTAC_OK;
}

static ptac_status run_nearest(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    ptac_nearest_plan plan;
    bool has_picks;
    void *scratch =
        ptac_nearest_plan_make(call, p->channels_last ? 0 : LANES, &plan, &has_picks);
    ptac_status status;

    if (!scratch)
        return PTAC_NO_MEMORY;
    if (has_picks)
        status =
            run_rows(call, &plan, p->channels_last ? spread_pixels : spread_planes);
    else
        status = ptac_nearest2d_by_definition(call);
    ptac_scratch_give(scratch);
    return status;
}

static ptac_status run_nearest_backward(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    const bool is_double = p->w.ratio == 0.5f && p->w.outputs == 2 * p->w.size;
    ptac_nearest_plan plan;
    bool has_picks;
    void *scratch;

    if (!p->channels_last && !is_double)
        return ptac_nearest2d_backward_by_definition(call);
    scratch = ptac_nearest_plan_make(call, 0, &plan, &has_picks);
    if (!scratch)
        return PTAC_NO_MEMORY;
    run_rows(call, &plan, p->channels_last ? gather_pixels : gather_planes);
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

PTAC_ROW(UPSAMPLE_NEAREST2D, ISA, PTAC_EXACT, NEEDS, ptac_upsample_accepts, run_nearest)
PTAC_ROW(UPSAMPLE_NEAREST2D_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_upsample_accepts,
         run_nearest_backward)
