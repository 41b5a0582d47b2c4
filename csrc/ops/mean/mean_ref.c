/*
 * mean_ref.c - means by definition, and their shape kinds.
 *
 * The row "scalar" runs on any CPU, with sums in double; every other row is tested
 * against it.
 */
#include "ops/mean/mean.h"

enum {
    ROWS_TO_64,
    ROWS_TO_256,
    ROWS_LONGER,
    COLUMNS_NARROW, /* less than a block of vectors beside each other */
    COLUMNS,
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_mean *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->inner == 1)
        shape->kind = p->n <= 64 ? ROWS_TO_64 : p->n <= 256 ? ROWS_TO_256 : ROWS_LONGER;
    else
        shape->kind = p->inner < 64 ? COLUMNS_NARROW : COLUMNS;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(MEAN, classify, "rows_to_64", "rows_to_256", "rows_longer",
            "columns_narrow", "columns")

ptac_reason ptac_mean_accepts(const ptac_call *call)
{
    const ptac_mean *p = call->params;

    if (p->outer * p->inner < call->n_threads && p->n > PTAC_MEAN_GRAIN)
        return PTAC_SHAPE;
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static void means(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_mean *p = call->params;
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const float *from = x + i / p->inner * p->n * p->inner + i % p->inner;
        double sum = 0;

        for (int64_t k = 0; k < p->n; k++)
            sum += from[k * p->inner];
        y[i] = (float)sum / (float)p->n;
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_mean *p = call->params;

    ptac_share_means(call, p->outer * p->inner, p->n, means);
    return PTAC_OK;
}

PTAC_ROW(MEAN, "scalar", PTAC_CLOSE, 0, ptac_mean_accepts, run)
