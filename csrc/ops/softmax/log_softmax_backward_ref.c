/*
 * log_softmax_backward_ref.c - the gradient of log-softmax by its definition.
 */
#include "ops/softmax/log_softmax.h"

#include <math.h>

static const ptac_op_shapes shapes = {
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .kinds = {"short", "long"},
    .classify = ptac_log_softmax_classify,
};
PTAC_REGISTER_SHAPES(shapes)

static void rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ptac_log_softmax_width(call);

    for (int64_t row = begin; row < end; row++) {
        const float *grad = (const float *)call->inputs[0].data + row * n;
        const float *y = (const float *)call->inputs[1].data + row * n;
        float *out = (float *)call->outputs[0].data + row * n;
        double sum = 0;

        for (int64_t i = 0; i < n; i++)
            sum += grad[i];
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(grad[i] - exp(y[i]) * sum);
    }
}

static ptac_reason accepts(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status run(const ptac_call *call)
{
    ptac_log_softmax_for_rows(call, rows);
    return PTAC_OK;
}

static const ptac_kernel log_softmax_backward_scalar = {
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .name = "scalar",
    .level = PTAC_CLOSE,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(log_softmax_backward_scalar)
