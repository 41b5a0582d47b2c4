/*
 * bilinear2d_backward_tpl.h - gradients of bilinear interpolation, a lane a plane.
 *
 * Lanes are planes of NCHW, whose rows are turned to pixels of LANES planes first, or
 * channels of NHWC. An element's additions so keep ATen's order, and its sum stays in a
 * register while a row of gradients goes by. Two rows of x wait in scratch for them.
 *
 * Included behind typed_<isa>.h. The includer also defines ISA and NEEDS, see
 * upsample_rows_tpl.h.
 */
#include "core/scratch.h"

#include <string.h>

enum {
    MOST_WIDE = 4, /* vectors of channels at once */
};

/* Gradients of LANES * wide planes: the next pixel's are step floats on. */
typedef struct gradient_block {
    const ptac_bilinear_gradient_plan *plan;
    int64_t step;
    int wide, n; /* vectors of a pixel, and lanes of each */
} gradient_block;

/* Sums of an element of two rows; the same row twice where the image ends. */
typedef struct element_sums {
    vec upper[MOST_WIDE], lower[MOST_WIDE];
} element_sums;

/* The gradients at g, by their part of the upper and the lower row. */
INLINE void add_gradients(const gradient_block *b, int wide, const float *g,
                          const ptac_linear_place *h, float weight, element_sums *sums)
{
    const vec w = v_set(weight);
    const vec upper = v_mul(v_set(h->of_first), w);
    const vec lower = v_mul(v_set(h->of_second), w);
    const bool is_one = h->first == h->second;

#pragma GCC unroll 4
    for (int v = 0; v < wide; v++) {
        const vec grads = load_f32(g + v * LANES, wide > 1 ? LANES : b->n);

        sums->upper[v] = v_fma(upper, grads, sums->upper[v]);
        if (is_one)
            sums->upper[v] = v_fma(lower, grads, sums->upper[v]);
        else
            sums->lower[v] = v_fma(lower, grads, sums->lower[v]);
    }
}

/* Where both elements of a column are one: four additions, in ATen's order. */
INLINE void add_twice(const gradient_block *b, int wide, const float *g,
                      const ptac_linear_place *h, const ptac_linear_place *w,
                      element_sums *sums)
{
    ptac_linear_place upper = *h, lower = *h;

    if (h->first != h->second) {
        add_gradients(b, wide, g, h, w->of_first, sums);
        add_gradients(b, wide, g, h, w->of_second, sums);
        return;
    }
    upper.of_first = h->of_first * w->of_first;
    upper.of_second = h->of_first * w->of_second;
    lower.of_first = h->of_second * w->of_first;
    lower.of_second = h->of_second * w->of_second;
    add_gradients(b, wide, g, &upper, 1, sums);
    add_gradients(b, wide, g, &lower, 1, sums);
}

INLINE void move_sums(float *at, vec *sums, int wide, bool is_store)
{
#pragma GCC unroll 4
    for (int v = 0; v < wide; v++)
        if (is_store)
            v_store(at + v * LANES, sums[v]);
        else
            sums[v] = v_load(at + v * LANES);
}

/* A row of gradients into two rows of elements, LANES * wide floats each. */
INLINE void add_row(const gradient_block *b, int wide, const float *grads,
                    const ptac_linear_place *h, float *upper, float *lower)
{
    const ptac_upsample *p = b->plan->call->params;
    const ptac_linear_place *columns = b->plan->columns;
    const int32_t *first = b->plan->first_column;
    const int64_t lanes = (int64_t)LANES * wide;

    for (int64_t w = 0; w < p->w.size; w++) {
        element_sums sums;

        move_sums(upper + w * lanes, sums.upper, wide, false);
        move_sums(lower + w * lanes, sums.lower, wide, false);
        if (w > 0 && !p->w.is_copy)
            for (int32_t ow = first[w - 1]; ow < first[w]; ow++)
                add_gradients(b, wide, grads + ow * b->step, h, columns[ow].of_second,
                              &sums);
        if (w == p->w.size - 1 || p->w.is_copy)
            for (int32_t ow = first[w]; ow < first[w + 1]; ow++)
                add_twice(b, wide, grads + ow * b->step, h, &columns[ow], &sums);
        else
            for (int32_t ow = first[w]; ow < first[w + 1]; ow++)
                add_gradients(b, wide, grads + ow * b->step, h, columns[ow].of_first,
                              &sums);
        move_sums(upper + w * lanes, sums.upper, wide, true);
        if (h->first != h->second)
            move_sums(lower + w * lanes, sums.lower, wide, true);
    }
}

TARGET static void add_wide_row(const gradient_block *b, const float *grads,
                                const ptac_linear_place *h, float *upper, float *lower)
{
    if (b->wide == MOST_WIDE)
        add_row(b, MOST_WIDE, grads, h, upper, lower);
    else
        add_row(b, 1, grads, h, upper, lower);
}

/* n_columns of n_planes rows, each plane floats behind the last, to pixels of LANES. */
INLINE void rows_to_pixels(const float *rows, int64_t plane, int n_planes,
                           int64_t n_columns, float *pixels)
{
    for (int64_t at = 0; at < n_columns; at += LANES) {
        const int n = at_most_lanes(n_columns - at);
        vec tile[LANES];

        for (int i = 0; i < LANES; i++)
            tile[i] = i < n_planes ? load_f32(rows + i * plane + at, n) : v_zero();
        v_transpose(tile);
        for (int i = 0; i < n; i++)
            v_store(pixels + (at + i) * LANES, tile[i]);
    }
}

INLINE void pixels_to_rows(const float *pixels, int64_t plane, int n_planes,
                           int64_t n_columns, float *rows)
{
    const int n = at_most_lanes(n_columns);

    for (int64_t i = 0; i < n_columns; i += LANES) {
        const int64_t at = i ? ptac_least(i, n_columns - LANES) : 0;
        vec tile[LANES];

        for (int k = 0; k < LANES; k++)
            tile[k] = k < n ? v_load(pixels + (at + k) * LANES) : v_zero();
        v_transpose(tile);
        for (int k = 0; k < n_planes; k++)
            store_f32(rows + k * plane + at, tile[k], n);
    }
}

/* A finished row of x, whose place in the scratch begins at 0 again. */
INLINE void give_row(const gradient_block *b, float *sums, float *x)
{
    const ptac_upsample *p = b->plan->call->params;
    const int64_t w = p->w.size, lanes = (int64_t)LANES * b->wide;

    if (!p->channels_last)
        pixels_to_rows(sums, p->h.size * w, b->n, w, x);
    else
        for (int64_t i = 0; i < w; i++, x += p->channels)
            for (int v = 0; v < b->wide; v++)
                store_f32(x + v * LANES, v_load(sums + i * lanes + v * LANES), b->n);
    memset(sums, 0, (size_t)(w * lanes) * sizeof *sums);
}

/* All rows of a block, of gradients at g and elements at x. */
INLINE void spread_block(const gradient_block *b, const float *g, float *x,
                         float *scratch)
{
    const ptac_upsample *p = b->plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const int64_t row = p->w.size * LANES * b->wide;
    float *upper = scratch, *lower = scratch + row, *turned = scratch + 2 * row;
    int64_t at = 0;

    memset(scratch, 0, (size_t)(2 * row) * sizeof *scratch);
    for (int64_t oh = 0; oh <= p->h.outputs; oh++) {
        const bool is_end = oh == p->h.outputs;
        const int64_t first = is_end ? p->h.size : b->plan->rows[oh].first;
        const float *grads = g + oh * p->w.outputs * pixel;

        for (; at < first; at++) {
            float *given = upper;

            give_row(b, upper, x + at * p->w.size * pixel);
            upper = lower;
            lower = given;
        }
        if (is_end)
            break;
        if (!p->channels_last) {
            rows_to_pixels(grads, p->h.outputs * p->w.outputs, b->n, p->w.outputs,
                           turned);
            grads = turned;
        }
        add_wide_row(b, grads, &b->plan->rows[oh], upper, lower);
    }
}

/* Blocks of a group, which are the planes of NCHW, or an image's channels. */
static int64_t wide_blocks(const ptac_upsample *p)
{
    return p->channels_last ? p->channels / (MOST_WIDE * LANES) : 0;
}

static int64_t blocks_of(const ptac_upsample *p)
{
    const int64_t n = p->channels_last ? p->channels : p->n * p->channels;
    const int64_t wide = wide_blocks(p);

    return wide + ptac_parts(n - wide * MOST_WIDE * LANES, LANES);
}

/* Block i of a group; *at becomes the number of its first plane or channel there. */
static gradient_block block_of(const ptac_bilinear_gradient_plan *plan, int64_t i,
                               int64_t *at)
{
    const ptac_upsample *p = plan->call->params;
    const int64_t n = p->channels_last ? p->channels : p->n * p->channels;
    const int64_t wide = wide_blocks(p);
    gradient_block b = {plan, p->channels_last ? p->channels : LANES, MOST_WIDE, LANES};

    *at = i * MOST_WIDE * LANES;
    if (i < wide)
        return b;
    *at = wide * MOST_WIDE * LANES + (i - wide) * LANES;
    b.wide = 1;
    b.n = (int)ptac_least(n - *at, LANES);
    return b;
}

/* Blocks [begin, end) of all groups. */
TARGET static void spread_blocks(int64_t begin, int64_t end, void *context)
{
    ptac_bilinear_gradient_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t of_x = p->h.size * p->w.size, of_y = p->h.outputs * p->w.outputs;
    const int64_t widest = wide_blocks(p) ? MOST_WIDE : 1;
    const int64_t floats = (2 * p->w.size * widest + p->w.outputs) * LANES;
    const float *g = plan->call->inputs[0].data;
    float *x = plan->call->outputs[0].data;
    float *scratch = ptac_scratch_take((size_t)floats * sizeof *scratch);

    if (!scratch) {
        __atomic_store_n(&plan->lacked_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const int64_t image = i / blocks_of(p) * p->channels;
        int64_t at;
        const gradient_block b = block_of(plan, i % blocks_of(p), &at);

        if (p->channels_last)
            spread_block(&b, g + image * of_y + at, x + image * of_x + at, scratch);
        else
            spread_block(&b, g + at * of_y, x + at * of_x, scratch);
    }
    ptac_scratch_give(scratch);
}

static ptac_status run_bilinear_backward(const ptac_call *call)
{
    const ptac_upsample *p = call->params;
    ptac_bilinear_gradient_plan plan;
    void *scratch;

    /* Additions that round twice are the definition's. */
    if (!p->is_fused)
        return ptac_bilinear2d_backward_by_definition(call);
    scratch = ptac_bilinear_gradient_plan_make(call, &plan);
    if (!scratch)
        return PTAC_NO_MEMORY;
    ptac_share_rows((p->channels_last ? p->n : 1) * blocks_of(p),
                    p->n * p->channels * p->h.outputs * p->w.outputs, spread_blocks,
                    &plan);
    ptac_scratch_give(scratch);
    return plan.lacked_memory ? PTAC_NO_MEMORY : PTAC_OK;
}

PTAC_ROW(UPSAMPLE_BILINEAR2D_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_upsample_accepts,
         run_bilinear_backward)
