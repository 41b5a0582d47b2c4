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

/* Gradients of n planes or channels: the next pixel's are step floats on. */
typedef struct gradient_block {
    const ptac_bilinear_gradient_plan *plan;
    int64_t step, n;
    int64_t width; /* floats of an element among the sums: n, to whole vectors */
} gradient_block;

/* Sums of an element of two rows; the same row twice where the image ends. */
typedef struct element_sums {
    vec upper[MOST_WIDE], lower[MOST_WIDE];
} element_sums;

/* wide times n gradients at g, by their part of the upper and the lower row. */
INLINE void add_gradients(int wide, int n, const float *g, const ptac_linear_place *h,
                          float weight, element_sums *sums)
{
    const vec w = v_set(weight);
    const vec upper = v_mul(v_set(h->of_first), w);
    const vec lower = v_mul(v_set(h->of_second), w);
    const bool is_one = h->first == h->second;

#pragma GCC unroll 4
    for (int v = 0; v < wide; v++) {
        const vec grads = load_f32(g + v * LANES, n);

        sums->upper[v] = v_fma(upper, grads, sums->upper[v]);
        if (is_one)
            sums->upper[v] = v_fma(lower, grads, sums->upper[v]);
        else
            sums->lower[v] = v_fma(lower, grads, sums->lower[v]);
    }
}

/* Where both elements of a column are one: four additions, in ATen's order. */
INLINE void add_twice(int wide, int n, const float *g, const ptac_linear_place *h,
                      const ptac_linear_place *w, element_sums *sums)
{
    ptac_linear_place upper = *h, lower = *h;

    if (h->first != h->second) {
        add_gradients(wide, n, g, h, w->of_first, sums);
        add_gradients(wide, n, g, h, w->of_second, sums);
        return;
    }
    upper.of_first = h->of_first * w->of_first;
    upper.of_second = h->of_first * w->of_second;
    lower.of_first = h->of_second * w->of_first;
    lower.of_second = h->of_second * w->of_second;
    add_gradients(wide, n, g, &upper, 1, sums);
    add_gradients(wide, n, g, &lower, 1, sums);
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

/* Element w of two rows, of the gradients in a row of them. */
INLINE void add_element(const gradient_block *b, int wide, int n, const float *grads,
                        const ptac_linear_place *h, int64_t w, float *upper,
                        float *lower)
{
    const ptac_upsample *p = b->plan->call->params;
    const ptac_linear_place *columns = b->plan->columns;
    const int32_t *first = b->plan->first_column;
    const bool is_twice = w == p->w.size - 1 || p->w.is_copy;
    element_sums sums;

    move_sums(upper, sums.upper, wide, false);
    move_sums(lower, sums.lower, wide, false);
    if (w > 0 && !p->w.is_copy)
        for (int32_t ow = first[w - 1]; ow < first[w]; ow++)
            add_gradients(wide, n, grads + ow * b->step, h, columns[ow].of_second,
                          &sums);
    for (int32_t ow = first[w]; ow < first[w + 1]; ow++)
        if (is_twice)
            add_twice(wide, n, grads + ow * b->step, h, &columns[ow], &sums);
        else
            add_gradients(wide, n, grads + ow * b->step, h, columns[ow].of_first,
                          &sums);
    move_sums(upper, sums.upper, wide, true);
    if (h->first != h->second)
        move_sums(lower, sums.lower, wide, true);
}

/* A row of gradients into two rows of elements. */
TARGET static void add_row(const gradient_block *b, const float *grads,
                           const ptac_linear_place *h, float *upper, float *lower)
{
    enum { WIDE = MOST_WIDE * LANES, PAIR = 2 * LANES };
    const ptac_upsample *p = b->plan->call->params;

    for (int64_t w = 0; w < p->w.size; w++, upper += b->width, lower += b->width) {
        int64_t c = 0;

        for (; c + WIDE <= b->n; c += WIDE)
            add_element(b, MOST_WIDE, LANES, grads + c, h, w, upper + c, lower + c);
        for (; c + PAIR <= b->n; c += PAIR)
            add_element(b, 2, LANES, grads + c, h, w, upper + c, lower + c);
        for (; c < b->n; c += LANES)
            add_element(b, 1, at_most_lanes(b->n - c), grads + c, h, w, upper + c,
                        lower + c);
    }
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
    const int64_t w = p->w.size;

    if (!p->channels_last)
        pixels_to_rows(sums, p->h.size * w, (int)b->n, w, x);
    else
        for (int64_t i = 0; i < w; i++)
            memcpy(x + i * p->channels, sums + i * b->width, (size_t)b->n * sizeof *x);
    memset(sums, 0, (size_t)(w * b->width) * sizeof *sums);
}

/* All rows of a block, of gradients at g and elements at x. */
INLINE void spread_block(const gradient_block *b, const float *g, float *x,
                         float *scratch)
{
    const ptac_upsample *p = b->plan->call->params;
    const int64_t pixel = p->channels_last ? p->channels : 1;
    const int64_t row = p->w.size * b->width;
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
            rows_to_pixels(grads, p->h.outputs * p->w.outputs, (int)b->n, p->w.outputs,
                           turned);
            grads = turned;
        }
        add_row(b, grads, &b->plan->rows[oh], upper, lower);
    }
}

/*
 * How many planes or channels go together: LANES planes of NCHW; all channels of an
 * image, or a share of them where there are fewer images than threads.
 */
static int64_t block_size(const ptac_upsample *p, int n_threads)
{
    const int64_t shares = ptac_parts(n_threads, p->n);

    return p->channels_last ? ptac_parts(p->channels, shares * LANES) * LANES : LANES;
}

static int64_t blocks_of(const ptac_upsample *p, int64_t size)
{
    return ptac_parts(p->channels_last ? p->channels : p->n * p->channels, size);
}

/* Blocks [begin, end) of all images, or of all planes. */
TARGET static void spread_blocks(int64_t begin, int64_t end, void *context)
{
    ptac_bilinear_gradient_plan *plan = context;
    const ptac_upsample *p = plan->call->params;
    const int64_t of_x = p->h.size * p->w.size, of_y = p->h.outputs * p->w.outputs;
    const int64_t size = block_size(p, plan->call->n_threads);
    const int64_t blocks = blocks_of(p, size);
    const int64_t most = p->channels_last ? p->channels : p->n * p->channels;
    const int64_t floats = 2 * p->w.size * size + p->w.outputs * LANES;
    const float *g = plan->call->inputs[0].data;
    float *x = plan->call->outputs[0].data;
    float *scratch = ptac_scratch_take((size_t)floats * sizeof *scratch);

    if (!scratch) {
        __atomic_store_n(&plan->lacked_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const int64_t image = i / blocks * p->channels, at = i % blocks * size;
        const gradient_block b = {
            .plan = plan,
            .step = p->channels_last ? p->channels : LANES,
            .n = ptac_least(size, most - at),
            .width = size,
        };

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
    int64_t blocks;
    void *scratch;

    /* Additions that round twice are the definition's. */
    if (!p->is_fused)
        return ptac_bilinear2d_backward_by_definition(call);
    scratch = ptac_bilinear_gradient_plan_make(call, &plan);
    if (!scratch)
        return PTAC_NO_MEMORY;
    blocks = blocks_of(p, block_size(p, call->n_threads));
    ptac_share_rows((p->channels_last ? p->n : 1) * blocks,
                    p->n * p->channels * p->h.outputs * p->w.outputs, spread_blocks,
                    &plan);
    ptac_scratch_give(scratch);
    return plan.lacked_memory ? PTAC_NO_MEMORY : PTAC_OK;
}

PTAC_ROW(UPSAMPLE_BILINEAR2D_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_upsample_accepts,
         run_bilinear_backward)
