/*
 * probabilities_tpl.h - softmax of rows and its gradient.
 *
 * Expects the words of lanes.h, and strips_tpl.h before it. Leaves softmax(call) and
 * softmax_backward(call), the run() of rows.
 */
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_tpl.h"

TARGET static void softmax_long_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[0], row, n);
        float *y = ptac_row(&call->outputs[0], row, n);
        const vec max = v_set(row_max(x, n));

        row_multiply(y, n, (float)(1 / row_sum(x, n, &max, y)), y);
    }
}

TARGET static void softmax_short_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t width = ptac_softmax_width(call);
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    vec columns[PTAC_SHORT_ROW];

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = at_most_lanes(end - row);
        vec factor;

        load_columns(x + row * width, width, n, columns);
        columns_exp(columns, width, columns_max(columns, width), columns);
        factor = v_div(v_set(1), columns_sum(columns, width));
        for (int64_t j = 0; j < width; j++)
            columns[j] = v_mul(columns[j], factor);
        store_columns(y + row * width, width, n, columns);
    }
}

static ptac_status softmax(const ptac_call *call)
{
    return ptac_softmax_run(call, softmax_short_rows, softmax_long_rows,
                            forward_strips);
}

/* The sum of grad * y, in float over SUM_BLOCK elements. */
INLINE double row_dot(const float *grad, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const int64_t end = ptac_least(n, begin + SUM_BLOCK);
        vec a = v_zero(), b = v_zero();
        int64_t at = begin;

        for (; at + 2 * LANES <= end; at += 2 * LANES) {
            a = v_fma(v_load(grad + at), v_load(y + at), a);
            b = v_fma(v_load(grad + at + LANES), v_load(y + at + LANES), b);
        }
        FOR_LANES(
            i, some, at, end,
            a = v_fma(v_load_first(grad + i, some), v_load_first(y + i, some), a));
        sum += v_sum_f64(v_add(a, b));
    }
    return sum;
}

TARGET static void softmax_long_slopes(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = ptac_row(&call->inputs[0], row, n);
        const float *y = ptac_row(&call->inputs[1], row, n);
        float *out = ptac_row(&call->outputs[0], row, n);
        const vec sum = v_set((float)row_dot(grad, y, n));

        FOR_LANES(i, some, 0, n,
                  v_store_first(out + i,
                                v_mul(v_load_first(y + i, some),
                                      v_sub(v_load_first(grad + i, some), sum)),
                                some));
    }
}

TARGET static void softmax_short_slopes(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t width = ptac_softmax_width(call);
    const float *grad = call->inputs[0].data, *y = call->inputs[1].data;
    float *out = call->outputs[0].data;
    vec grads[PTAC_SHORT_ROW], ys[PTAC_SHORT_ROW], products[PTAC_SHORT_ROW];

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = at_most_lanes(end - row);
        vec sum;

        load_columns(grad + row * width, width, n, grads);
        load_columns(y + row * width, width, n, ys);
        for (int64_t j = 0; j < width; j++)
            products[j] = v_mul(grads[j], ys[j]);
        sum = columns_sum(products, width);
        for (int64_t j = 0; j < width; j++)
            ys[j] = v_mul(ys[j], v_sub(grads[j], sum));
        store_columns(out + row * width, width, n, ys);
    }
}

static ptac_status softmax_backward(const ptac_call *call)
{
    return ptac_softmax_run(call, softmax_short_slopes, softmax_long_slopes,
                            backward_strips);
}
