/*
 * softmax_ref.c - softmax, log-softmax and their gradients by their definitions, in
 * double, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/softmax/softmax.h"

#include <math.h>

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *x = &call->inputs[0];
    const ptac_softmax *p = call->params;

    if (x->dtype != PTAC_F32 && call->on == PTAC_ON_CPU)
        return PTAC_DTYPE;
    if (x->n_dims == 0)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (p->inner > 1 && p->inner < PTAC_LEAST_INNER)
        return PTAC_SHAPE;
    shape->kind = p->width > PTAC_SHORT_ROW; /* "long" */
    if (p->inner > 1)
        shape->kind = 2 + shape->kind;
    shape->work = x->n_elements;
    return PTAC_TAKE;
}

#define KINDS "short", "long", "short_columns", "long_columns"
PTAC_SHAPES(SOFTMAX, classify, KINDS)
PTAC_SHAPES(SOFTMAX_BACKWARD, classify, KINDS)
PTAC_SHAPES(LOG_SOFTMAX, classify, KINDS)
PTAC_SHAPES(LOG_SOFTMAX_BACKWARD, classify, KINDS)

static double log_sum(const float *x, int64_t n, int64_t step, double *max)
{
    double sum = 0;

    *max = x[0];
    for (int64_t i = 1; i < n; i++)
        *max = x[i * step] > *max ? x[i * step] : *max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i * step] - *max);
    return log(sum);
}

double ptac_log_sum(const float *x, int64_t n, double *max)
{
    return log_sum(x, n, 1, max);
}

/* Where a row begins in each tensor. */
static int64_t place_of(const ptac_call *call, int64_t row)
{
    const ptac_softmax *p = call->params;

    return row / p->inner * p->width * p->inner + row % p->inner;
}

static void forward_row(const ptac_call *call, int64_t row, bool is_log)
{
    const ptac_softmax *p = call->params;
    const float *x = (const float *)call->inputs[0].data + place_of(call, row);
    float *y = (float *)call->outputs[0].data + place_of(call, row);
    double max;
    const double log_of_sum = log_sum(x, p->width, p->inner, &max);

    for (int64_t i = 0; i < p->width * p->inner; i += p->inner) {
        const double log_of_y = x[i] - max - log_of_sum;

        y[i] = (float)(is_log ? log_of_y : exp(log_of_y));
    }
}

static void backward_row(const ptac_call *call, int64_t row, bool is_log)
{
    const ptac_softmax *p = call->params;
    const float *grad = (const float *)call->inputs[0].data + place_of(call, row);
    const float *y = (const float *)call->inputs[1].data + place_of(call, row);
    float *out = (float *)call->outputs[0].data + place_of(call, row);
    double sum = 0;

    for (int64_t i = 0; i < p->width * p->inner; i += p->inner)
        sum += is_log ? grad[i] : (double)grad[i] * y[i];
    for (int64_t i = 0; i < p->width * p->inner; i += p->inner)
        out[i] = (float)(is_log ? grad[i] - exp(y[i]) * sum : y[i] * (grad[i] - sum));
}

#define SCALAR(name, of_row, is_log)                                                   \
    static void name##_rows(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        for (int64_t row = begin; row < end; row++)                                    \
            of_row(context, row, is_log);                                              \
    }                                                                                  \
    static ptac_status name(const ptac_call *call)                                     \
    {                                                                                  \
        const int64_t width = ptac_softmax_width(call);                                \
                                                                                       \
        ptac_parallel_for(0, call->inputs[0].n_elements / width,                       \
                          PTAC_SOFTMAX_WORK / width + 1, name##_rows, (void *)call);   \
        return PTAC_OK;                                                                \
    }

SCALAR(log_softmax, forward_row, true)
SCALAR(softmax, forward_row, false)
SCALAR(log_softmax_backward, backward_row, true)
SCALAR(softmax_backward, backward_row, false)

PTAC_SOFTMAX_ROWS("scalar", 0)
