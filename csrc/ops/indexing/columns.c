/*
 * columns.c - columns picked from rows, and added to them. One by one: there is nothing
 * side by side that a vector could take.
 */
#include "ops/indexing/columns.h"

static void share(const ptac_call *call, ptac_range_fn body)
{
    const ptac_rows *p = call->params;

    ptac_parallel_for(0, p->n_rows, 16384 / p->n + 1, body, (void *)call);
}

static void pick(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_rows *p = call->params;
    const int64_t *places = call->inputs[PTAC_ROWS_INDEX].data;

    for (int64_t b = begin; b < end; b++) {
        const float *row = (float *)call->inputs[PTAC_ROWS_TABLE].data + b * p->stride;
        float *y = (float *)call->outputs[0].data + b * p->n;

        for (int64_t k = 0; k < p->n; k++)
            y[k] = row[places[k]];
    }
}

ptac_status ptac_columns_pick(const ptac_call *call)
{
    share(call, pick);
    return PTAC_OK;
}

static void add(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_rows *p = call->params;
    const int64_t *places = call->inputs[PTAC_ROWS_INDEX].data;

    for (int64_t b = begin; b < end; b++) {
        const float *x = (float *)call->inputs[PTAC_ROWS_X].data + b * p->n;
        float *row = (float *)call->outputs[0].data + b * p->stride;

        for (int64_t k = 0; k < p->n; k++)
            row[places[k]] += x[k];
    }
}

ptac_status ptac_columns_add(const ptac_call *call)
{
    share(call, add);
    return PTAC_OK;
}
