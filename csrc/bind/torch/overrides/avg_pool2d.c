/*
 * avg_pool2d.c - aten::avg_pool2d and its backward.
 *
 *   avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0,
 *       bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None)
 *       -> Tensor
 *   avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size,
 *       int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad,
 *       int? divisor_override) -> Tensor
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

/* The arguments of both directions; forward has no grad. */
typedef struct pool_args {
    at_tensor grad, x;
    at_window window;
    at_optional_int divisor;
    bool count_include_pad;
} pool_args;

/* The six arguments that follow the tensors. */
static void take_arguments(const stable_ivalue *stack, pool_args *args)
{
    args->window = (at_window){
        .kernel = at_take_pair(stack[0]),
        .stride = at_take_pair(stack[1]),
        .padding = at_take_pair(stack[2]),
        .dilation = {.values = {1, 1}, .n = 2},
        .ceil_mode = stack[3] & 0xff,
    };
    args->count_include_pad = stack[4] & 0xff;
    args->divisor.value = (int64_t)at_open_optional(stack[5], &args->divisor.has_value);
}

static void box_arguments(const pool_args *args, stable_ivalue *stack)
{
    stack[0] = at_pair_box(&args->window.kernel);
    stack[1] = at_pair_box(&args->window.stride);
    stack[2] = at_pair_box(&args->window.padding);
    stack[3] = args->window.ceil_mode;
    stack[4] = args->count_include_pad;
    stack[5] = args->divisor.has_value
                   ? at_box_optional((stable_ivalue)args->divisor.value)
                   : 0;
}

/* Fill params for an input of this layout, or say why stock must look at it. */
static ptac_reason read_params(const pool_args *args, const ptac_view *x,
                               ptac_avg_pool2d *params)
{
    const at_optional_int *divisor = &args->divisor;

    if (divisor->has_value && divisor->value == 0)
        return PTAC_ARGUMENT;
    params->divisor = divisor->has_value ? divisor->value : 0;
    params->count_include_pad = args->count_include_pad;
    params->is_adaptive = false;
    params->is_regular = true;
    return ptac_read_window(&args->window, x, &params->window, &params->image);
}

static void stock_forward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    const at_window *window = &args->window;
    at_result result;

    if (T.cpu_avg_pool2d) {
        result = T.cpu_avg_pool2d(args->x, at_pair_ints(&window->kernel),
                                  at_pair_ints(&window->stride),
                                  at_pair_ints(&window->padding), window->ceil_mode,
                                  args->count_include_pad, args->divisor);
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[8] = {at_box_tensor(args->x)};
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    box_arguments(args, stack + 1);
    at_call_out("aten::avg_pool2d", "out", stack, 7, &dtype, out, 1);
}

static bool fast_forward(const pool_args *args, at_tensor *out)
{
    ptac_avg_pool2d params;
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_AVG_POOL2D,
                 .n_inputs = 1,
                 .n_outputs = 1,
                 .params = &params},
        .inputs = &args->x,
        .image = &params.image,
        .stock = stock_forward,
        .args = args,
    };
    ptac_view *x = &job.call.inputs[0];

    if (ptac_is_off(job.call.op))
        return false;
    ptac_view_of(args->x, x);
    return ptac_pool_forward(&job, read_params(args, x, &params), out);
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    pool_args args = {.x = x};
    at_tensor out;

    take_arguments(stack + 1, &args);
    if (!fast_forward(&args, &out))
        stock_forward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override avg_pool2d = {
    .name = "avg_pool2d",
    .op = PTAC_OP_AVG_POOL2D,
    .boxed = boxed_forward,
};
PTAC_OVERRIDE(avg_pool2d)

static void stock_backward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    const at_window *window = &args->window;
    at_result result;

    if (T.cpu_avg_pool2d_backward) {
        result = T.cpu_avg_pool2d_backward(
            args->grad, args->x, at_pair_ints(&window->kernel),
            at_pair_ints(&window->stride), at_pair_ints(&window->padding),
            window->ceil_mode, args->count_include_pad, args->divisor);
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[9] = {at_box_tensor(args->grad), at_box_tensor(args->x)};
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    box_arguments(args, stack + 2);
    at_call_out("aten::avg_pool2d_backward", "grad_input", stack, 8, &dtype, out, 1);
}

static bool fast_backward(const pool_args *args, at_tensor *out)
{
    ptac_avg_pool2d params;
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_AVG_POOL2D_BACKWARD,
                 .n_inputs = 1,
                 .n_outputs = 1,
                 .params = &params},
        .inputs = &args->grad,
        .image = &params.image,
        .stock = stock_backward,
        .args = args,
    };
    ptac_view x;

    if (ptac_is_off(job.call.op))
        return false;
    ptac_view_of(args->x, &x);
    ptac_view_of(args->grad, &job.call.inputs[0]);
    return ptac_pool_backward(&job, read_params(args, &x, &params), &x, out);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor x = at_take_tensor(stack, 1);
    pool_args args = {.grad = grad, .x = x};
    at_tensor out;

    take_arguments(stack + 2, &args);
    if (!fast_backward(&args, &out))
        stock_backward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override avg_pool2d_backward = {
    .name = "avg_pool2d_backward",
    .op = PTAC_OP_AVG_POOL2D_BACKWARD,
    .boxed = boxed_backward,
};
PTAC_OVERRIDE(avg_pool2d_backward)
