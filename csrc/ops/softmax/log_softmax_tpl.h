/*
 * log_softmax_tpl.h - log-softmax of rows, on the lanes named before.
 */
#include "ops/softmax/log_softmax.h"
#include "ops/softmax/softmax_tpl.h"

INLINE void log_lanes(const float *x, vec max, vec log_sum, int n, float *y)
{
    v_store_first(y, v_sub(v_sub(v_load_first(x, n), max), log_sum), n);
}

TARGET static void long_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)call->inputs[0].data + row * n;
        float *y = (float *)call->outputs[0].data + row * n;
        const float max = row_max(x, n);
        const vec top = v_set(max);
        const vec log_sum = v_set((float)log(row_exp(x, n, max, NULL)));
        int64_t i = 0;

        for (; i + LANES <= n; i += LANES)
            log_lanes(x + i, top, log_sum, LANES, y + i);
        if (i < n)
            log_lanes(x + i, top, log_sum, (int)(n - i), y + i);
    }
}

TARGET static void short_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t width = ptac_log_softmax_width(call);
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    vec columns[PTAC_SHORT_ROW], exps[PTAC_SHORT_ROW];

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = (int)least(end - row, LANES);
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

static ptac_reason accepts(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status run(const ptac_call *call)
{
    const bool is_short = ptac_log_softmax_width(call) <= PTAC_SHORT_ROW;

    ptac_log_softmax_for_rows(call, is_short ? short_rows : long_rows);
    return PTAC_OK;
}
