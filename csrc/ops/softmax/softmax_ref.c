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

    if (x->dtype != PTAC_F32 && call->on == PTAC_ON_CPU)
        return PTAC_DTYPE;
    if (x->n_dims == 0)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    shape->kind = ptac_log_softmax_width(call) > PTAC_SHORT_ROW; /* "long" */
    shape->work = x->n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(SOFTMAX, classify, "short", "long")
PTAC_SHAPES(SOFTMAX_BACKWARD, classify, "short", "long")
PTAC_SHAPES(LOG_SOFTMAX, classify, "short", "long")
PTAC_SHAPES(LOG_SOFTMAX_BACKWARD, classify, "short", "long")

double ptac_log_sum(const float *x, int64_t n, double *max)
{
    double sum = 0;

    *max = x[0];
    for (int64_t i = 1; i < n; i++)
        *max = x[i] > *max ? x[i] : *max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - *max);
    return log(sum);
}

static void log_softmax_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[0], row, n);
        float *y = ptac_row(&call->outputs[0], row, n);
        double max;
        const double log_of_sum = ptac_log_sum(x, n, &max);

        for (int64_t i = 0; i < n; i++)
            y[i] = (float)(x[i] - max - log_of_sum);
    }
}

static ptac_status log_softmax(const ptac_call *call)
{
    return ptac_log_softmax_run(call, log_softmax_rows, log_softmax_rows);
}

static void log_softmax_gradients(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = ptac_row(&call->inputs[0], row, n);
        const float *y = ptac_row(&call->inputs[1], row, n);
        float *out = ptac_row(&call->outputs[0], row, n);
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += grad[i];
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(grad[i] - exp(y[i]) * sum);
    }
}

static ptac_status log_softmax_backward(const ptac_call *call)
{
    return ptac_log_softmax_run(call, log_softmax_gradients, log_softmax_gradients);
}

static void softmax_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[0], row, n);
        float *y = ptac_row(&call->outputs[0], row, n);
        double max;
        const double log_of_sum = ptac_log_sum(x, n, &max);

        for (int64_t i = 0; i < n; i++)
            y[i] = (float)exp(x[i] - max - log_of_sum);
    }
}

static ptac_status softmax(const ptac_call *call)
{
    return ptac_log_softmax_run(call, softmax_rows, softmax_rows);
}

static void softmax_gradients(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = ptac_row(&call->inputs[0], row, n);
        const float *y = ptac_row(&call->inputs[1], row, n);
        float *out = ptac_row(&call->outputs[0], row, n);
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += (double)grad[i] * y[i];
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(y[i] * (grad[i] - sum));
    }
}

static ptac_status softmax_backward(const ptac_call *call)
{
    return ptac_log_softmax_run(call, softmax_gradients, softmax_gradients);
}

PTAC_ROW(SOFTMAX, "scalar", PTAC_CLOSE, 0, ptac_accept_all, softmax)
PTAC_ROW(SOFTMAX_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, softmax_backward)
PTAC_LOG_SOFTMAX_ROWS("scalar", 0)
