/*
 * log_softmax.c - aten::_log_softmax and its backward, over the last dimension.
 *
 *   _log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
 *   _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim,
 *       ScalarType input_dtype) -> Tensor
 */
#include "bind/torch/overrides/override.h"
#include "bind/torch/stock.h"
#include "ops/softmax/log_softmax.h"

enum {
    MAX_DIMS = 16,
};

static bool is_last_dim(int64_t dim, const ptac_view *x)
{
    return dim == -1 || dim == x->n_dims - 1;
}

static bool same_sizes(const ptac_view *a, const ptac_view *b)
{
    if (a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->sizes[i] != b->sizes[i])
            return false;
    return true;
}

/* A new contiguous tensor of x's sizes and dtype, as stock makes it. */
static at_tensor new_like(const ptac_view *x)
{
    int64_t strides[MAX_DIMS], elements = 1;

    for (int i = x->n_dims - 1; i >= 0; i--) {
        strides[i] = elements;
        elements *= x->sizes[i];
    }
    return at_empty(x->n_dims, x->sizes, strides, ptac_torch_dtype_of(x->dtype));
}

typedef struct forward_args {
    at_tensor x;
    int64_t dim;
    bool half_to_float;
} forward_args;

static void stock_forward(const void *context, at_tensor *out)
{
    const forward_args *args = context;
    at_result result;

    if (T.cpu_log_softmax) {
        result = T.cpu_log_softmax(args->x, args->dim, args->half_to_float);
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[4] = {at_box_tensor(args->x), (stable_ivalue)args->dim,
                              args->half_to_float};
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    at_call_out("aten::_log_softmax", "out", stack, 3, &dtype, out, 1);
}

static ptac_reason check_forward(const forward_args *args, const ptac_view *x)
{
    if (x->n_dims == 0 || x->n_dims > MAX_DIMS)
        return PTAC_SHAPE;
    if (args->half_to_float || !is_last_dim(args->dim, x))
        return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

static at_tensor fast_forward(const forward_args *args)
{
    ptac_call call = {.op = PTAC_OP_LOG_SOFTMAX, .n_inputs = 1, .n_outputs = 1};
    ptac_view *x = &call.inputs[0];
    AT_OWNED at_tensor dense = NULL;

    if (ptac_is_off(call.op))
        return NULL;
    ptac_view_of(args->x, x);

    const ptac_reason why = check_forward(args, x);

    if (why) {
        ptac_refuse(call.op, why);
        return NULL;
    }

    const ptac_kernel *row = ptac_admit(&call);

    if (!row)
        return NULL;
    dense = at_dense(args->x, x, false); /* as stock does */
    ptac_view_of(dense, x);

    AT_OWNED at_tensor y = new_like(x);

    ptac_view_of(y, &call.outputs[0]);

    if (!ptac_run_checked(row, &call, &y, stock_forward, args))
        return NULL;
    return at_give(&y);
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    const forward_args args = {x, (int64_t)stack[1], stack[2] & 0xff};
    at_tensor out = fast_forward(&args);

    if (!out)
        stock_forward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override log_softmax = {
    .name = "_log_softmax",
    .op = PTAC_OP_LOG_SOFTMAX,
    .boxed = boxed_forward,
};
PTAC_OVERRIDE(log_softmax)

typedef struct backward_args {
    at_tensor grad, y;
    int64_t dim;
    int32_t input_dtype;
} backward_args;

static void stock_backward(const void *context, at_tensor *out)
{
    const backward_args *args = context;
    at_result result;

    if (T.cpu_log_softmax_backward) {
        result = T.cpu_log_softmax_backward(args->grad, args->y, args->dim,
                                            (int8_t)args->input_dtype);
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[5] = {at_box_tensor(args->grad), at_box_tensor(args->y),
                              (stable_ivalue)args->dim,
                              (stable_ivalue)args->input_dtype};

    at_call_out("aten::_log_softmax_backward_data", "out", stack, 4, &args->input_dtype,
                out, 1);
}

static ptac_reason check_backward(const backward_args *args, const ptac_call *call)
{
    const ptac_view *grad = &call->inputs[0], *y = &call->inputs[1];

    if (grad->n_dims == 0 || grad->n_dims > MAX_DIMS)
        return PTAC_SHAPE;
    if (y->dtype != grad->dtype || args->input_dtype != AT_DTYPE_F32)
        return PTAC_DTYPE;
    if (!is_last_dim(args->dim, grad) || !same_sizes(grad, y))
        return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

static at_tensor fast_backward(const backward_args *args)
{
    ptac_call call = {
        .op = PTAC_OP_LOG_SOFTMAX_BACKWARD, .n_inputs = 2, .n_outputs = 1};
    AT_OWNED at_tensor grad = NULL;
    AT_OWNED at_tensor y = NULL;

    if (ptac_is_off(call.op))
        return NULL;
    ptac_view_of(args->grad, &call.inputs[0]);
    ptac_view_of(args->y, &call.inputs[1]);

    const ptac_reason why = check_backward(args, &call);

    if (why) {
        ptac_refuse(call.op, why);
        return NULL;
    }

    const ptac_kernel *row = ptac_admit(&call);

    if (!row)
        return NULL;
    grad = at_dense(args->grad, &call.inputs[0], false);
    y = at_dense(args->y, &call.inputs[1], false);
    ptac_view_of(grad, &call.inputs[0]);
    ptac_view_of(y, &call.inputs[1]);

    AT_OWNED at_tensor grad_x = new_like(&call.inputs[0]);

    ptac_view_of(grad_x, &call.outputs[0]);

    if (!ptac_run_checked(row, &call, &grad_x, stock_backward, args))
        return NULL;
    return at_give(&grad_x);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor y = at_take_tensor(stack, 1);
    const backward_args args = {grad, y, (int64_t)stack[2], (int32_t)stack[3]};
    at_tensor out = fast_backward(&args);

    if (!out)
        stock_backward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override log_softmax_backward = {
    .name = "_log_softmax_backward_data",
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .boxed = boxed_backward,
};
PTAC_OVERRIDE(log_softmax_backward)
