/*
 * log_softmax.c - aten::_log_softmax and its backward, over the last dimension.
 */
#include "bind/torch/overrides/override.h"
#include "ops/softmax/log_softmax.h"

static at_result forward(const ptac_arguments *args)
{
    return T.cpu_log_softmax(ptac_tensor(args, 0), args->at[1].number,
                             args->at[2].truth);
}

static bool is_last_dim(int64_t dim, const ptac_view *x)
{
    return dim == -1 || dim == x->n_dims - 1;
}

/* Outputs are contiguous, as stock makes them. */
static ptac_reason output_like(const ptac_view *x, ptac_output *output)
{
    output->n_dims = x->n_dims;
    output->sizes = x->sizes;
    output->channels_last = false;
    return x->n_dims == 0 || x->n_dims > PTAC_MAX_DIMS ? PTAC_SHAPE : PTAC_TAKE;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    const ptac_view *x = &call->inputs[0];
    const ptac_reason why = output_like(x, output);

    (void)params;
    if (!why && (args->at[2].truth || !is_last_dim(args->at[1].number, x)))
        return PTAC_ARGUMENT;
    return why;
}

static ptac_override log_softmax = {
    .schema = "_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    .op = PTAC_OP_LOG_SOFTMAX,
    .kernel = forward,
    .symbol = &T.cpu_log_softmax,
    .out = "aten::_log_softmax.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(log_softmax)

static at_result backward(const ptac_arguments *args)
{
    return T.cpu_log_softmax_backward(ptac_tensor(args, 0), ptac_tensor(args, 1),
                                      args->at[2].number, (int8_t)args->at[3].number);
}

static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_output *output)
{
    const ptac_view *grad = &call->inputs[0], *y = &call->inputs[1];
    const ptac_reason why = output_like(grad, output);

    (void)params;
    if (why)
        return why;
    if (y->dtype != grad->dtype || args->at[3].number != AT_DTYPE_F32)
        return PTAC_DTYPE;
    if (!is_last_dim(args->at[2].number, grad) ||
        !ptac_view_has_sizes(y, grad->n_dims, grad->sizes))
        return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

static ptac_override log_softmax_backward = {
    .schema = "_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
              "ScalarType input_dtype) -> Tensor",
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .kernel = backward,
    .symbol = &T.cpu_log_softmax_backward,
    .out = "aten::_log_softmax_backward_data.out",
    .dtype_from = 3,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_backward,
};
PTAC_OVERRIDE(log_softmax_backward)
