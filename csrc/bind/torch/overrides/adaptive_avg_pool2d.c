/*
 * adaptive_avg_pool2d.c - aten::_adaptive_avg_pool2d and its backward.
 *
 *   _adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
 *   _adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

/* The arguments of both directions; forward has no grad. */
typedef struct pool_args {
    at_tensor grad, x;
    at_pair size;
} pool_args;

/* Fill params for an input of this layout, or say why stock must look at it. */
static ptac_reason read_params(const ptac_view *x, int64_t out_h, int64_t out_w,
                               ptac_avg_pool2d *params)
{
    const ptac_reason why = ptac_image_of(x, &params->image);

    if (why)
        return why;
    if (out_h < 1 || out_w < 1 || out_h >= INT32_MAX || out_w >= INT32_MAX)
        return PTAC_ARGUMENT;
    params->image.out_h = out_h;
    params->image.out_w = out_w;
    ptac_avg_pool2d_adapt(params);
    return PTAC_TAKE;
}

static void stock_forward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    at_result result;

    if (T.cpu_adaptive_avg_pool2d) {
        result = T.cpu_adaptive_avg_pool2d(args->x, at_pair_ints(&args->size));
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[3] = {at_box_tensor(args->x), at_pair_box(&args->size)};
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    /* Not _adaptive_avg_pool2d.out, which calls _adaptive_avg_pool2d. */
    at_call_out("aten::adaptive_avg_pool2d", "out", stack, 2, &dtype, out, 1);
}

static bool fast_forward(const pool_args *args, at_tensor *out)
{
    ptac_avg_pool2d params;
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_ADAPTIVE_AVG_POOL2D,
                 .n_inputs = 1,
                 .n_outputs = 1,
                 .params = &params},
        .inputs = &args->x,
        .image = &params.image,
        .stock = stock_forward,
        .args = args,
    };
    ptac_view *x = &job.call.inputs[0];
    ptac_reason why = PTAC_ARGUMENT;

    if (ptac_is_off(job.call.op))
        return false;
    ptac_view_of(args->x, x);
    if (at_pair_is_given(&args->size))
        why = read_params(x, args->size.values[0], args->size.values[1], &params);
    return ptac_pool_forward(&job, why, out);
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    const pool_args args = {.x = x, .size = at_take_pair(stack[1])};
    at_tensor out;

    if (!fast_forward(&args, &out))
        stock_forward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override adaptive_avg_pool2d = {
    .name = "_adaptive_avg_pool2d",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D,
    .boxed = boxed_forward,
};
PTAC_OVERRIDE(adaptive_avg_pool2d)

static void stock_backward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    at_result result;

    result = T.cpu_adaptive_avg_pool2d_backward(args->grad, args->x);
    *out = at_adopt(result.words[0]);
}

/* ATen divides by the gradient's layout, and gives the result x's. */
static ptac_reason read_backward(const ptac_view *grad, const ptac_view *x,
                                 ptac_avg_pool2d *params)
{
    if (grad->n_dims < 2)
        return PTAC_SHAPE;
    if (ptac_view_suggests_channels_last(grad) != ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    return read_params(x, grad->sizes[grad->n_dims - 2], grad->sizes[grad->n_dims - 1],
                       params);
}

static bool fast_backward(const pool_args *args, at_tensor *out)
{
    ptac_avg_pool2d params;
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD,
                 .n_inputs = 1,
                 .n_outputs = 1,
                 .params = &params},
        .inputs = &args->grad,
        .image = &params.image,
        .stock = stock_backward,
        .args = args,
    };
    ptac_view *grad = &job.call.inputs[0], x;

    if (ptac_is_off(job.call.op))
        return false;
    ptac_view_of(args->x, &x);
    ptac_view_of(args->grad, grad);
    return ptac_pool_backward(&job, read_backward(grad, &x, &params), &x, out);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor x = at_take_tensor(stack, 1);
    const pool_args args = {.grad = grad, .x = x};
    at_tensor out;

    if (!fast_backward(&args, &out))
        stock_backward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

/* No other way leads to torch's kernel: even the out= overload calls this operator. */
static bool has_stock_backward(void)
{
    return T.cpu_adaptive_avg_pool2d_backward != NULL;
}

static const ptac_override adaptive_avg_pool2d_backward = {
    .name = "_adaptive_avg_pool2d_backward",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD,
    .boxed = boxed_backward,
    .is_possible = has_stock_backward,
};
PTAC_OVERRIDE(adaptive_avg_pool2d_backward)
