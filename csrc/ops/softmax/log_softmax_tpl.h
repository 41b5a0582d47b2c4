/*
 * log_softmax_tpl.h - log-softmax of rows and its gradient.
 *
 * Expects the words of lanes.h, and strips_tpl.h before it. Leaves log_softmax(call)
 * and log_softmax_backward(call), the run() of rows.
 */
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_tpl.h"

TARGET static void forward_long_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[0], row, n);
        float *y = ptac_row(&call->outputs[0], row, n);
        const vec max = v_set(row_max(x, n));
        const vec log_sum = v_set((float)log(row_sum(x, n, &max, NULL)));

        FOR_LANES(i, some, 0, n,
                  v_store_first(y + i,
                                v_sub(v_sub(v_load_first(x + i, some), max), log_sum),
                                some));
    }
}

TARGET static void forward_short_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t width = ptac_softmax_width(call);
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    vec columns[PTAC_SHORT_ROW], exps[PTAC_SHORT_ROW];

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = at_most_lanes(end - row);
        vec max, log_sum;

        load_columns(x + row * width, width, n, columns);
        max = columns_max(columns, width);
        columns_exp(columns, width, max, exps);
        log_sum = v_log(columns_sum(exps, width));
        for (int64_t j = 0; j < width; j++)
            columns[j] = v_sub(v_sub(columns[j], max), log_sum);
        store_columns(y + row * width, width, n, columns);
    }
}

static ptac_status log_softmax(const ptac_call *call)
{
    return ptac_softmax_run(call, forward_short_rows, forward_long_rows,
                            log_forward_strips);
}

TARGET static void backward_long_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = ptac_row(&call->inputs[0], row, n);
        const float *y = ptac_row(&call->inputs[1], row, n);
        float *out = ptac_row(&call->outputs[0], row, n);
        const vec sum = v_set((float)row_sum(grad, n, NULL, NULL));

        FOR_LANES(i, some, 0, n,
                  v_store_first(out + i,
                                v_fnma(v_exp(v_load_first(y + i, some)), sum,
                                       v_load_first(grad + i, some)),
                                some));
    }
}

TARGET static void backward_short_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t width = ptac_softmax_width(call);
    const float *grad = call->inputs[0].data, *y = call->inputs[1].data;
    float *out = call->outputs[0].data;
    vec grads[PTAC_SHORT_ROW], columns[PTAC_SHORT_ROW];

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = at_most_lanes(end - row);
        vec sum;

        load_columns(grad + row * width, width, n, grads);
        load_columns(y + row * width, width, n, columns);
        sum = columns_sum(grads, width);
        for (int64_t j = 0; j < width; j++)
            columns[j] = v_fnma(v_exp(columns[j]), sum, grads[j]);
        store_columns(out + row * width, width, n, columns);
    }
}

static ptac_status log_softmax_backward(const ptac_call *call)
{
    return ptac_softmax_run(call, backward_short_rows, backward_long_rows,
                            log_backward_strips);
}
