/*
 * max_pool2d.c - aten::max_pool2d_with_indices and its backward.
 *
 *   max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[],
 *       int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)
 *   max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2]
 * kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor
 * indices)
 *       -> Tensor
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/max/max_pool2d.h"

static at_window take_window(const stable_ivalue *stack)
{
    return (at_window){
        .kernel = at_take_pair(stack[0]),
        .stride = at_take_pair(stack[1]),
        .padding = at_take_pair(stack[2]),
        .dilation = at_take_pair(stack[3]),
        .ceil_mode = stack[4] & 0xff,
    };
}

static void box_window(const at_window *args, stable_ivalue *stack)
{
    stack[0] = at_pair_box(&args->kernel);
    stack[1] = at_pair_box(&args->stride);
    stack[2] = at_pair_box(&args->padding);
    stack[3] = at_pair_box(&args->dilation);
    stack[4] = args->ceil_mode;
}

/* The arguments of both directions; forward has only x. */
typedef struct pool_args {
    at_tensor grad, x, indices;
    at_window window;
} pool_args;

static void stock_forward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    const at_window *window = &args->window;
    at_result results;

    if (T.cpu_max_pool2d_with_indices) {
        results = T.cpu_max_pool2d_with_indices(
            args->x, at_pair_ints(&window->kernel), at_pair_ints(&window->stride),
            at_pair_ints(&window->padding), at_pair_ints(&window->dilation),
            window->ceil_mode);
        out[0] = at_adopt(results.words[1]);
        out[1] = at_adopt(results.words[0]);
        return;
    }

    stable_ivalue stack[8] = {at_box_tensor(args->x)};
    int32_t dtypes[2] = {0, AT_DTYPE_I64};

    T.aoti_torch_get_dtype(args->x, &dtypes[0]);
    box_window(window, stack + 1);
    at_call_out("aten::max_pool2d_with_indices", "out", stack, 6, dtypes, out, 2);
}

static bool fast_forward(const pool_args *args, at_tensor *out)
{
    ptac_max_pool2d params;
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_MAX_POOL2D,
                 .n_inputs = 1,
                 .n_outputs = 2,
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
    return ptac_pool_forward(
        &job, ptac_read_window(&args->window, x, &params.window, &params.image), out);
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    const pool_args args = {.x = x, .window = take_window(stack + 1)};
    at_tensor out[2];

    if (!fast_forward(&args, out))
        stock_forward(&args, out);
    stack[0] = (stable_ivalue)(uintptr_t)out[0];
    stack[1] = (stable_ivalue)(uintptr_t)out[1];
}

static const ptac_override max_pool2d = {
    .name = "max_pool2d_with_indices",
    .op = PTAC_OP_MAX_POOL2D,
    .boxed = boxed_forward,
};
PTAC_OVERRIDE(max_pool2d)

static void stock_backward(const void *context, at_tensor *out)
{
    const pool_args *args = context;
    const at_window *window = &args->window;
    at_result result;

    if (T.cpu_max_pool2d_with_indices_backward) {
        result = T.cpu_max_pool2d_with_indices_backward(
            args->grad, args->x, at_pair_ints(&window->kernel),
            at_pair_ints(&window->stride), at_pair_ints(&window->padding),
            at_pair_ints(&window->dilation), window->ceil_mode, args->indices);
        *out = at_adopt(result.words[0]);
        return;
    }

    stable_ivalue stack[9] = {at_box_tensor(args->grad), at_box_tensor(args->x)};
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    box_window(window, stack + 2);
    stack[7] = at_box_tensor(args->indices);
    at_call_out("aten::max_pool2d_with_indices_backward", "grad_input", stack, 8,
                &dtype, out, 1);
}

static bool fast_backward(const pool_args *args, at_tensor *out)
{
    ptac_max_pool2d params;
    const at_tensor inputs[] = {args->grad, args->indices};
    ptac_pool_job job = {
        .call = {.op = PTAC_OP_MAX_POOL2D_BACKWARD,
                 .n_inputs = 2,
                 .n_outputs = 1,
                 .params = &params},
        .inputs = inputs,
        .image = &params.image,
        .stock = stock_backward,
        .args = args,
    };
    ptac_view x;

    if (ptac_is_off(job.call.op))
        return false;
    ptac_view_of(args->x, &x);
    ptac_view_of(args->grad, &job.call.inputs[0]);
    ptac_view_of(args->indices, &job.call.inputs[1]);
    return ptac_pool_backward(
        &job, ptac_read_window(&args->window, &x, &params.window, &params.image), &x,
        out);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor x = at_take_tensor(stack, 1);
    AT_OWNED at_tensor indices = at_take_tensor(stack, 7);
    const pool_args args = {grad, x, indices, take_window(stack + 2)};
    at_tensor out;

    if (!fast_backward(&args, &out))
        stock_backward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static const ptac_override max_pool2d_backward = {
    .name = "max_pool2d_with_indices_backward",
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .boxed = boxed_backward,
};
PTAC_OVERRIDE(max_pool2d_backward)
