/*
 * direct_tpl.h - convolution of few input channels, on the lanes named before.
 *
 * The pixels that a tap meets are laid out as the outputs are, so that every vector of
 * every tap is one aligned load beside the outputs of its strip:
 *
 *   taps      [tap][pixel], zeros where the image ends and behind the last pixel
 *
 * A forward sum runs over channels, kernel rows and kernel columns, in that order, with
 * the bias first. Gradients of weights add up in float over some strips, in as many sums
 * as there are lanes, and from there in double.
 */
#include "ops/conv/direct.h"

#include <string.h>

enum {
    OUTPUTS = LANES == 16 ? 8 : 6, /* output channels that share the loads of taps */
    MOST_GRADS = 5,                /* the same for gradients, see sum_weights_3() */
    MOST_TAPS = 9,
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

INLINE void copy(float *to, const float *from, int n)
{
    int i = 0;

    for (; i + LANES <= n; i += LANES)
        v_store(to + i, v_load(from + i));
    if (i < n)
        v_store_first(to + i, v_load_first(from + i, n - i), n - i);
}

/* The pixels of one tap: rows of the image, moved by (down, right). */
INLINE void lay_out_tap(const ptac_conv2d *p, const direct_strip *s, const float *plane,
                        int down, int right, float *to)
{
    const int from = right < 0 ? -right : 0;
    const int last = p->w - right < p->out_w ? p->w - right : p->out_w;
    const int n = last > from ? last - from : 0;

    for (int i = 0; i < s->n; i++, to += p->out_w) {
        const int row = s->row + i + down;

        if (row < 0 || row >= p->h || n == 0) {
            memset(to, 0, (size_t)p->out_w * sizeof *to);
            continue;
        }
        for (int j = 0; j < from; j++)
            to[j] = 0;
        copy(to + from, plane + (int64_t)row * p->w + from + right, n);
        for (int j = from + n; j < p->out_w; j++)
            to[j] = 0;
    }
}

INLINE void lay_out_taps(const ptac_direct_plan *plan, const direct_strip *s, int r,
                         float *taps)
{
    const ptac_conv2d *p = plan->conv;
    const int n_pixels = s->n * p->out_w;
    const float *plane = plan->x + s->image * p->in_channels * (int64_t)p->h * p->w;

    for (int c = 0; c < p->in_channels; c++, plane += (int64_t)p->h * p->w) {
        for (int a = 0; a < r; a++) {
            for (int b = 0; b < r; b++, taps += plan->tap_step) {
                lay_out_tap(p, s, plane, a - p->pad_h, b - p->pad_w, taps);
                for (int i = n_pixels; i % LANES != 0; i++)
                    taps[i] = 0;
            }
        }
    }
}

/*
 * n_outputs channels of one or two vectors of pixels, of which the last has n_last.
 * weight, bias and y are of the first channel.
 */
INLINE void outputs_at(const ptac_direct_plan *plan, const float *taps, int n_outputs,
                       int n_vectors, int n_last, const float *weight,
                       const float *bias, float *y)
{
    const ptac_conv2d *p = plan->conv;
    const int64_t plane = (int64_t)p->out_h * p->out_w;
    vec sums[OUTPUTS][2];

#pragma GCC unroll 8
    for (int k = 0; k < n_outputs; k++)
        for (int v = 0; v < n_vectors; v++)
            sums[k][v] = bias ? v_set(bias[k]) : v_zero();
    for (int t = 0; t < plan->n_taps; t++, taps += plan->tap_step) {
        vec tap[2];

        for (int v = 0; v < n_vectors; v++)
            tap[v] = v_load(taps + v * LANES);
#pragma GCC unroll 8
        for (int k = 0; k < n_outputs; k++) {
            const vec w = v_set(weight[k * plan->n_taps + t]);

            for (int v = 0; v < n_vectors; v++)
                sums[k][v] = v_fma(w, tap[v], sums[k][v]);
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < n_outputs; k++) {
        if (n_vectors == 2)
            v_store(y + k * plane, sums[k][0]);
        v_store_first(y + k * plane + (n_vectors - 1) * LANES, sums[k][n_vectors - 1],
                      n_last);
    }
}

INLINE void output_channels(const ptac_direct_plan *plan, const direct_strip *s,
                            const float *taps, int channel, int n_outputs)
{
    const ptac_conv2d *p = plan->conv;
    const float *weight = plan->weight + (int64_t)channel * plan->n_taps;
    const float *bias = plan->bias ? plan->bias + channel : NULL;
    float *y = plan->y + ((s->image * p->out_channels + channel) * p->out_h + s->row) *
                             (int64_t)p->out_w;
    const int n = s->n * p->out_w;
    int at = 0;

    for (; at + 2 * LANES <= n; at += 2 * LANES)
        outputs_at(plan, taps + at, n_outputs, 2, LANES, weight, bias, y + at);
    if (n - at > LANES)
        outputs_at(plan, taps + at, n_outputs, 2, n - at - LANES, weight, bias, y + at);
    else if (n - at == LANES)
        outputs_at(plan, taps + at, n_outputs, 1, LANES, weight, bias, y + at);
    else if (n > at)
        outputs_at(plan, taps + at, n_outputs, 1, n - at, weight, bias, y + at);
}

INLINE void direct_forward(int64_t begin, int64_t end, void *context, int r)
{
    const ptac_direct_plan *plan = context;
    const int n_outputs = plan->conv->out_channels;

    for (int64_t i = begin; i < end; i++) {
        const int64_t last = plan->n_strips * (i + 1) / plan->n_pieces;
        float *taps = plan->scratch + i * plan->n_private;

        for (int64_t j = plan->n_strips * i / plan->n_pieces; j < last; j++) {
            const direct_strip s = direct_strip_at(plan, j);
            int k = 0;

            lay_out_taps(plan, &s, r, taps);
            for (; k + OUTPUTS <= n_outputs; k += OUTPUTS)
                output_channels(plan, &s, taps, k, OUTPUTS);
            for (; k < n_outputs; k++)
                output_channels(plan, &s, taps, k, 1);
        }
    }
}

/* m products of n_grads channels with n_taps taps, of the first m pixels of vectors. */
INLINE void add_products(const float *taps, int64_t tap_step, const float *grad,
                         int64_t plane, int n_taps, int n_grads, int m,
                         vec sums[MOST_GRADS][MOST_TAPS])
{
    vec grads[MOST_GRADS];

#pragma GCC unroll 5
    for (int k = 0; k < n_grads; k++)
        grads[k] = v_load_first(grad + k * plane, m);
#pragma GCC unroll 9
    for (int t = 0; t < n_taps; t++) {
        const vec x = v_load(taps + t * tap_step);

#pragma GCC unroll 5
        for (int k = 0; k < n_grads; k++)
            sums[k][t] = v_fma(x, grads[k], sums[k][t]);
    }
}

/* A strip's part of the sums of n_grads channels and n_taps taps, step apart. */
INLINE void add_taps(const float *taps, int64_t tap_step, const float *grad,
                     int64_t plane, int n_pixels, int n_taps, int n_grads, float *sums,
                     int64_t step)
{
    vec found[MOST_GRADS][MOST_TAPS];
    int i = 0;

#pragma GCC unroll 5
    for (int k = 0; k < n_grads; k++)
#pragma GCC unroll 9
        for (int t = 0; t < n_taps; t++)
            found[k][t] = v_load(sums + k * step + t * LANES);
    for (; i + LANES <= n_pixels; i += LANES)
        add_products(taps + i, tap_step, grad + i, plane, n_taps, n_grads, LANES,
                     found);
    if (i < n_pixels)
        add_products(taps + i, tap_step, grad + i, plane, n_taps, n_grads, n_pixels - i,
                     found);
#pragma GCC unroll 5
    for (int k = 0; k < n_grads; k++)
#pragma GCC unroll 9
        for (int t = 0; t < n_taps; t++)
            v_store(sums + k * step + t * LANES, found[k][t]);
}

INLINE void add_grads(const float *grad, int n_pixels, float *sums)
{
    vec sum = v_load(sums);
    int i = 0;

    for (; i + LANES <= n_pixels; i += LANES)
        sum = v_add(sum, v_load(grad + i));
    if (i < n_pixels)
        sum = v_add(sum, v_load_first(grad + i, n_pixels - i));
    v_store(sums, sum);
}

/* sums are [channel][tap][LANES], and behind them [channel][LANES] of the gradients. */
INLINE void add_strip(const ptac_direct_plan *plan, const direct_strip *s,
                      const float *taps, int n_taps, int n_grads, float *sums)
{
    const ptac_conv2d *p = plan->conv;
    const int64_t plane = (int64_t)p->out_h * p->out_w;
    const int64_t step = (int64_t)plan->n_taps * LANES;
    const int n = p->out_channels, n_pixels = s->n * p->out_w;
    const float *grad = plan->grad + s->image * n * plane + (int64_t)s->row * p->out_w;
    int k = 0;

    for (; k < n; k += n_grads, grad += n_grads * plane, sums += n_grads * step) {
        if (k + n_grads > n)
            break;
        for (int t = 0; t < plan->n_taps; t += n_taps)
            add_taps(taps + t * plan->tap_step, plan->tap_step, grad, plane, n_pixels,
                     n_taps, n_grads, sums + t * LANES, step);
    }
    for (; k < n; k++, grad += plane, sums += step)
        for (int t = 0; t < plan->n_taps; t += n_taps)
            add_taps(taps + t * plan->tap_step, plan->tap_step, grad, plane, n_pixels,
                     n_taps, 1, sums + t * LANES, step);
    if (plan->grad_bias)
        for (k = 0, grad -= n * plane; k < n; k++, grad += plane, sums += LANES)
            add_grads(grad, n_pixels, sums);
}

/* Float sums go on in double after so many strips. */
TARGET static void flush_sums(const ptac_direct_plan *plan, float *sums, double *totals)
{
    const int64_t n = (int64_t)plan->conv->out_channels * (plan->n_taps + 1);

    for (int64_t i = 0; i < n; i++)
        totals[i] += v_sum_f64(v_load(sums + i * LANES));
    memset(sums, 0, (size_t)n * LANES * sizeof *sums);
}

INLINE void direct_weights(int64_t begin, int64_t end, void *context, int r, int n_taps,
                           int n_grads)
{
    const ptac_direct_plan *plan = context;
    const int64_t n_sums = (int64_t)plan->conv->out_channels * (plan->n_taps + 1);

    for (int64_t i = begin; i < end; i++) {
        const int64_t first = plan->n_strips * i / plan->n_pieces;
        const int64_t last = plan->n_strips * (i + 1) / plan->n_pieces;
        float *taps = plan->scratch + i * plan->n_private;
        float *sums = taps + plan->n_taps * plan->tap_step;

        memset(sums, 0, (size_t)n_sums * LANES * sizeof *sums);
        for (int64_t j = first; j < last; j++) {
            const direct_strip s = direct_strip_at(plan, j);

            lay_out_taps(plan, &s, r, taps);
            add_strip(plan, &s, taps, n_taps, n_grads, sums);
            if ((j - first) % FLUSH == FLUSH - 1 || j == last - 1)
                flush_sums(plan, sums, plan->sums + i * n_sums);
        }
    }
}

TARGET static void forward_3(int64_t begin, int64_t end, void *context)
{
    direct_forward(begin, end, context, 3);
}

TARGET static void forward_5(int64_t begin, int64_t end, void *context)
{
    direct_forward(begin, end, context, 5);
}

/* As many sums as there are registers for: taps in whole kernels or rows of them. */
TARGET static void sum_weights_3(int64_t begin, int64_t end, void *context)
{
    direct_weights(begin, end, context, 3, LANES == 16 ? 9 : 3, LANES == 16 ? 3 : 4);
}

TARGET static void sum_weights_5(int64_t begin, int64_t end, void *context)
{
    direct_weights(begin, end, context, 5, 5, LANES == 16 ? 5 : 2);
}

static ptac_status run_direct(const ptac_call *call)
{
    static const ptac_direct_stages stages_3 = {LANES, forward_3, sum_weights_3};
    static const ptac_direct_stages stages_5 = {LANES, forward_5, sum_weights_5};
    const ptac_conv2d *p = call->params;

    return ptac_direct_run(call, p->kernel_h == 3 ? &stages_3 : &stages_5);
}
