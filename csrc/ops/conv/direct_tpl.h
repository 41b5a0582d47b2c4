/*
 * direct_tpl.h - convolution of few input channels, and its rows.
 *
 * The includer defines
 *
 *   TARGET, INLINE, LANES, vec, v_*   by including ops/math/lanes_<isa>.h; LANES is 8
 *                                     or 16
 *   ISA                               string: the end of the rows' names
 *   NEEDS                             PTAC_CPU_*: what the CPU must have
 *
 * Functions take the kernel's side r, 3 or 5, as a constant.
 *
 * A strip of the image is copied with its padding, so that every tap of every output is
 * a load from there:
 *
 *   rows      [channel][row][width]
 *
 * A forward sum runs over channels, kernel rows and kernel columns, in that order, with
 * the bias first where there is no scale. Gradients of weights add up in float over
 * some strips, in as many sums as there are lanes, and from there in double.
 */
#include "ops/conv/direct.h"

#include <string.h>

enum {
    OUTPUTS = LANES == 16 ? 8 : 4, /* output channels that share the loads of taps */
    GRADS = LANES == 16 ? 4 : 2,   /* the same for gradients */
    MOST_KERNEL = 5,
    FLUSH = 16, /* strips whose gradients add up in float */
};

/* Rows [row, row + n) of the outputs of an image. */
typedef struct direct_strip {
    int64_t image;
    int row, n;
} direct_strip;

INLINE direct_strip direct_strip_at(const ptac_direct_plan *plan, int64_t i)
{
    const int row = (int)(i % plan->strips) * plan->strip;
    const int rest = plan->conv->out_h - row;

    return (direct_strip){i / plan->strips, row,
                          rest < plan->strip ? rest : plan->strip};
}

/* Floats between the channels of a strip, also of one with fewer rows. */
INLINE int channel_step(const ptac_direct_plan *plan)
{
    return (plan->strip + plan->conv->kernel_h - 1) * plan->width;
}

INLINE void copy_rows(const ptac_direct_plan *plan, const direct_strip *s, int r,
                      float *strip)
{
    const ptac_conv2d *p = plan->conv;
    const int left = p->pad_w, n_rows = s->n + r - 1;
    const int right = plan->width - left - p->w;

    for (int c = 0; c < p->in_channels; c++) {
        const float *plane =
            plan->x + (s->image * p->in_channels + c) * (int64_t)p->h * p->w;
        float *rows = strip + (int64_t)c * channel_step(plan);

        for (int i = 0; i < n_rows; i++, rows += plan->width) {
            const int row = s->row - p->pad_h + i;

            if (row < 0 || row >= p->h) {
                memset(rows, 0, (size_t)plan->width * sizeof *rows);
                continue;
            }
            memset(rows, 0, (size_t)left * sizeof *rows);
            memcpy(rows + left, plane + (int64_t)row * p->w,
                   (size_t)p->w * sizeof *rows);
            memset(rows + left + p->w, 0, (size_t)right * sizeof *rows);
        }
    }
}

INLINE float bias_of(const ptac_direct_plan *plan, int channel)
{
    return plan->bias ? plan->bias[channel] : 0;
}

/* The epilogue; NaN passes. */
INLINE vec direct_finished(const ptac_direct_plan *plan, int channel, vec sum)
{
    if (plan->scale)
        sum = v_fma(sum, v_set(plan->scale[channel]), v_set(bias_of(plan, channel)));
    sum = v_max(v_set(ptac_act_least(plan->conv->act)), sum);
    return v_min(v_set(ptac_act_most(plan->conv->act)), sum);
}

/*
 * n_outputs channels, from channel on, of one or two vectors of neighbouring outputs,
 * of which the last has n_last. y is of the first channel.
 */
INLINE void outputs_at(const ptac_direct_plan *plan, int r, const float *rows,
                       int channel, int n_outputs, int n_vectors, int n_last, float *y)
{
    const ptac_conv2d *p = plan->conv;
    const float *weight = plan->weight + (int64_t)channel * plan->n_taps;
    const int64_t plane = (int64_t)p->out_h * p->out_w;
    vec sums[OUTPUTS][2];

#pragma GCC unroll 8
    for (int k = 0; k < n_outputs; k++)
        for (int v = 0; v < n_vectors; v++)
            sums[k][v] = plan->scale ? v_zero() : v_set(bias_of(plan, channel + k));
    for (int c = 0; c < p->in_channels;
         c++, rows += channel_step(plan), weight += r * r) {
        const float *row = rows;

        for (int a = 0; a < r; a++, row += plan->width) {
#pragma GCC unroll 5
            for (int b = 0; b < r; b++) {
                vec tap[2];

                for (int v = 0; v < n_vectors; v++)
                    tap[v] = v_load(row + b + v * LANES);
#pragma GCC unroll 8
                for (int k = 0; k < n_outputs; k++) {
                    const vec w = v_set(weight[k * plan->n_taps + a * r + b]);

                    for (int v = 0; v < n_vectors; v++)
                        sums[k][v] = v_fma(w, tap[v], sums[k][v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < n_outputs; k++) {
        for (int v = 0; v < n_vectors; v++)
            sums[k][v] = direct_finished(plan, channel + k, sums[k][v]);
        if (n_vectors == 2)
            v_store(y + k * plane, sums[k][0]);
        v_store_first(y + k * plane + (n_vectors - 1) * LANES, sums[k][n_vectors - 1],
                      n_last);
    }
}

/* A row of n_outputs channels. Outputs of the last vector may be computed twice. */
INLINE void output_row(const ptac_direct_plan *plan, int r, const float *rows,
                       int channel, int n_outputs, float *y)
{
    const int n = plan->conv->out_w;
    int at = 0;

    for (; at + 2 * LANES <= n; at += 2 * LANES)
        outputs_at(plan, r, rows + at, channel, n_outputs, 2, LANES, y + at);
    if (at == n)
        return;
    if (n - at > LANES && n >= 2 * LANES) {
        at = n - 2 * LANES;
        outputs_at(plan, r, rows + at, channel, n_outputs, 2, LANES, y + at);
    } else if (n - at > LANES) {
        outputs_at(plan, r, rows + at, channel, n_outputs, 2, n - at - LANES, y + at);
    } else if (n >= LANES) {
        at = n - LANES;
        outputs_at(plan, r, rows + at, channel, n_outputs, 1, LANES, y + at);
    } else {
        outputs_at(plan, r, rows + at, channel, n_outputs, 1, n - at, y + at);
    }
}

INLINE void output_channels(const ptac_direct_plan *plan, const direct_strip *s, int r,
                            const float *rows, int channel, int n_outputs)
{
    const ptac_conv2d *p = plan->conv;
    float *y = plan->y + ((s->image * p->out_channels + channel) * p->out_h + s->row) *
                             (int64_t)p->out_w;

    for (int i = 0; i < s->n; i++)
        output_row(plan, r, rows + i * plan->width, channel, n_outputs,
                   y + (int64_t)i * p->out_w);
}

/* Piece i. */
INLINE void forward(const ptac_direct_plan *plan, int64_t i, int r)
{
    const int n_outputs = plan->conv->out_channels;
    const int64_t last = plan->n_strips * (i + 1) / plan->n_pieces;
    float *rows = plan->scratch + i * plan->n_private;

    for (int64_t j = plan->n_strips * i / plan->n_pieces; j < last; j++) {
        const direct_strip s = direct_strip_at(plan, j);
        int k = 0;

        copy_rows(plan, &s, r, rows);
        for (; k + OUTPUTS <= n_outputs; k += OUTPUTS)
            output_channels(plan, &s, r, rows, k, OUTPUTS);
        for (; k < n_outputs; k++)
            output_channels(plan, &s, r, rows, k, 1);
    }
}

/*
 * Adds the products of a strip to the sums of n output channels, of one input channel
 * and one kernel row: sums[k][b] are vectors, k_step apart. totals are of the gradients
 * themselves, or NULL.
 */
INLINE void add_row_of_taps(const ptac_direct_plan *plan, const direct_strip *s, int r,
                            const float *rows, const float *grad, int n, float *sums,
                            int k_step, float *totals)
{
    const ptac_conv2d *p = plan->conv;
    const int64_t plane = (int64_t)p->out_h * p->out_w;
    vec taps[GRADS][MOST_KERNEL], all[GRADS];

#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        all[k] = totals ? v_load(totals + k * LANES) : v_zero();
#pragma GCC unroll 5
        for (int b = 0; b < r; b++)
            taps[k][b] = v_load(sums + k * k_step + b * LANES);
    }
    for (int i = 0; i < s->n; i++, rows += plan->width, grad += p->out_w) {
        for (int j = 0; j < p->out_w; j += LANES) {
            const int m = p->out_w - j < LANES ? p->out_w - j : LANES;
            vec grads[GRADS];

#pragma GCC unroll 4
            for (int k = 0; k < n; k++) {
                grads[k] = m == LANES ? v_load(grad + k * plane + j)
                                      : v_load_first(grad + k * plane + j, m);
                if (totals)
                    all[k] = v_add(all[k], grads[k]);
            }
#pragma GCC unroll 5
            for (int b = 0; b < r; b++) {
                /* A lane without a gradient must not meet an infinity. */
                const vec x =
                    m == LANES ? v_load(rows + b + j) : v_load_first(rows + b + j, m);

#pragma GCC unroll 4
                for (int k = 0; k < n; k++)
                    taps[k][b] = v_fma(x, grads[k], taps[k][b]);
            }
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        if (totals)
            v_store(totals + k * LANES, all[k]);
#pragma GCC unroll 5
        for (int b = 0; b < r; b++)
            v_store(sums + k * k_step + b * LANES, taps[k][b]);
    }
}

/* All taps of n output channels. sums: [channel][tap][LANES], then [channel][LANES]. */
INLINE void add_channels(const ptac_direct_plan *plan, const direct_strip *s, int r,
                         const float *rows, int channel, int n, float *sums)
{
    const ptac_conv2d *p = plan->conv;
    const int k_step = plan->n_taps * LANES;
    const float *grad =
        plan->grad + ((s->image * p->out_channels + channel) * p->out_h + s->row) *
                         (int64_t)p->out_w;
    float *totals = sums + (int64_t)p->out_channels * k_step + channel * LANES;

    sums += (int64_t)channel * k_step;
    for (int c = 0; c < p->in_channels; c++)
        for (int a = 0; a < r; a++, sums += r * LANES)
            add_row_of_taps(plan, s, r, rows + c * channel_step(plan) + a * plan->width,
                            grad, n, sums, k_step, c + a == 0 ? totals : NULL);
}

/* Float sums go on in double after so many strips. */
TARGET static void flush_sums(const ptac_direct_plan *plan, float *sums, double *totals)
{
    const int64_t n = (int64_t)plan->conv->out_channels * (plan->n_taps + 1);

    for (int64_t i = 0; i < n; i++)
        totals[i] += v_sum_f64(v_load(sums + i * LANES));
    memset(sums, 0, (size_t)n * LANES * sizeof *sums);
}

INLINE void sum_weights(const ptac_direct_plan *plan, int64_t i, int r)
{
    const int n_outputs = plan->conv->out_channels;
    const int64_t n_sums = (int64_t)n_outputs * (plan->n_taps + 1);
    const int64_t first = plan->n_strips * i / plan->n_pieces;
    const int64_t last = plan->n_strips * (i + 1) / plan->n_pieces;
    float *rows = plan->scratch + i * plan->n_private;
    float *sums = rows + plan->n_rows;

    memset(sums, 0, (size_t)n_sums * LANES * sizeof *sums);
    for (int64_t j = first; j < last; j++) {
        const direct_strip s = direct_strip_at(plan, j);
        int k = 0;

        copy_rows(plan, &s, r, rows);
        for (; k + GRADS <= n_outputs; k += GRADS)
            add_channels(plan, &s, r, rows, k, GRADS, sums);
        for (; k < n_outputs; k++)
            add_channels(plan, &s, r, rows, k, 1, sums);
        if ((j - first) % FLUSH == FLUSH - 1 || j == last - 1)
            flush_sums(plan, sums, plan->sums + i * n_sums);
    }
}

#define DEFINE_DIRECT(stage, r)                                                        \
    TARGET static void stage##_##r(int64_t begin, int64_t end, void *context)          \
    {                                                                                  \
        for (int64_t i = begin; i < end; i++)                                          \
            stage(context, i, r);                                                      \
    }
DEFINE_DIRECT(forward, 3)
DEFINE_DIRECT(forward, 5)
DEFINE_DIRECT(sum_weights, 3)
DEFINE_DIRECT(sum_weights, 5)

static ptac_status run_direct(const ptac_call *call)
{
    static const ptac_direct_stages stages_3 = {LANES, forward_3, sum_weights_3};
    static const ptac_direct_stages stages_5 = {LANES, forward_5, sum_weights_5};
    const ptac_conv2d *p = call->params;

    return ptac_direct_run(call, p->kernel_h == 3 ? &stages_3 : &stages_5);
}

PTAC_CONV_ROW(CONV2D, "direct", 0, PTAC_CLOSE, ptac_direct_accepts, run_direct)
PTAC_CONV_ROW(CONV2D_BACKWARD, "direct", 0, PTAC_CLOSE, ptac_direct_accepts, run_direct)
