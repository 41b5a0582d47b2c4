/*
 * max_pool2d_bind.c - aten::max_pool2d_with_indices and its backward.
 *
 *   max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[],
 *       int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)
 *   max_pool2d_with_indices_backward(Tensor grad_output, Tensor self,
 *       int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation,
 *       bool ceil_mode, Tensor indices) -> Tensor
 */
#include "bind/torch/override.h"
#include "bind/torch/pool_args.h"
#include "core/clock.h"
#include "ops/pool/max_pool2d.h"

/* The five arguments that follow the tensors. */
typedef struct window_args {
    at_pair kernel, stride, padding, dilation;
    bool ceil_mode;
} window_args;

static window_args take_window(const stable_ivalue *stack)
{
    return (window_args){
        .kernel = at_take_pair(stack[0]),
        .stride = at_take_pair(stack[1]),
        .padding = at_take_pair(stack[2]),
        .dilation = at_take_pair(stack[3]),
        .ceil_mode = stack[4] & 0xff,
    };
}

static void box_window(const window_args *args, stable_ivalue *stack)
{
    stack[0] = at_pair_box(&args->kernel);
    stack[1] = at_pair_box(&args->stride);
    stack[2] = at_pair_box(&args->padding);
    stack[3] = at_pair_box(&args->dilation);
    stack[4] = args->ceil_mode;
}

/* Fill params for an input of this layout, or say why stock must look at it. */
static ptac_reason read_params(const window_args *args, const ptac_view *x,
                               ptac_max_pool2d *params)
{
    const at_pair *stride = args->stride.n ? &args->stride : &args->kernel;
    ptac_window *h = &params->window.h, *w = &params->window.w;
    ptac_image *image = &params->image;
    const ptac_reason why = ptac_image_of(x, image);

    if (why)
        return why;
    if (!at_pair_is_given(&args->kernel) || !at_pair_is_given(stride) ||
        !at_pair_is_given(&args->padding) || !at_pair_is_given(&args->dilation))
        return PTAC_ARGUMENT;
    *h = (ptac_window){args->kernel.values[0], stride->values[0],
                       args->padding.values[0], args->dilation.values[0]};
    *w = (ptac_window){args->kernel.values[1], stride->values[1],
                       args->padding.values[1], args->dilation.values[1]};
    params->window.ceil_mode = args->ceil_mode;
    if (!ptac_window_is_valid(h) || !ptac_window_is_valid(w))
        return PTAC_ARGUMENT;
    image->out_h = ptac_window_outputs(h, image->h, args->ceil_mode);
    image->out_w = ptac_window_outputs(w, image->w, args->ceil_mode);
    if (image->out_h < 1 || image->out_w < 1)
        return PTAC_ARGUMENT;
    if (!ptac_window_always_hits(h, image->h, image->out_h) ||
        !ptac_window_always_hits(w, image->w, image->out_w))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

static void stock_forward(at_tensor x, const window_args *args, at_tensor out[2])
{
    static const int32_t index_dtype = AT_DTYPE_I64;
    void *results[2];

    if (T.cpu_max_pool2d_with_indices) {
        T.cpu_max_pool2d_with_indices(results, x, at_pair_ints(&args->kernel),
                                      at_pair_ints(&args->stride),
                                      at_pair_ints(&args->padding),
                                      at_pair_ints(&args->dilation), args->ceil_mode);
        out[0] = at_adopt(results[1]);
        out[1] = at_adopt(results[0]);
        return;
    }

    stable_ivalue stack[8] = {at_box_tensor(x)};
    int32_t dtypes[2] = {0, index_dtype};

    T.aoti_torch_get_dtype(x, &dtypes[0]);
    box_window(args, stack + 1);
    at_call_out("aten::max_pool2d_with_indices", "out", stack, 6, dtypes, out, 2);
}

static bool fast_forward(at_tensor given, const window_args *args, at_tensor out[2])
{
    ptac_max_pool2d params;
    ptac_call call = {.op = PTAC_OP_MAX_POOL2D, .n_inputs = 1, .n_outputs = 2};
    ptac_view *x = &call.inputs[0];
    AT_OWNED at_tensor dense = NULL;
    int64_t sizes[4];

    if (ptac_is_off(call.op))
        return false;
    call.params = &params;
    ptac_view_of(given, x);

    const ptac_reason why = read_params(args, x, &params);

    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }

    const ptac_kernel *row = ptac_admit(&call);
    const bool channels_last = params.image.channels_last;

    if (!row)
        return false;
    dense = at_dense(given, x, channels_last); /* as stock does */
    ptac_view_of(dense, x);
    ptac_pooled_sizes(x, &params.image, sizes);
    AT_OWNED at_tensor y =
        ptac_new_image(x->n_dims, sizes, channels_last, ptac_torch_dtype_of(x->dtype));
    AT_OWNED at_tensor indices =
        ptac_new_image(x->n_dims, sizes, channels_last, AT_DTYPE_I64);

    ptac_view_of(y, &call.outputs[0]);
    ptac_view_of(indices, &call.outputs[1]);

    const bool shadow = ptac_shadow_due(call.op);
    const int64_t t_start = shadow ? ptac_clock_ns() : 0;

    if (!ptac_run(row, &call))
        return false;
    out[0] = at_give(&y);
    out[1] = at_give(&indices);
    if (shadow) {
        const int64_t t_middle = ptac_clock_ns();
        at_tensor expected[2];

        stock_forward(given, args, expected);
        ptac_shadow_settle(row, out, expected, 2, t_middle - t_start,
                           ptac_clock_ns() - t_middle);
    }
    return true;
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    const window_args args = take_window(stack + 1);
    at_tensor out[2];

    if (!fast_forward(x, &args, out))
        stock_forward(x, &args, out);
    stack[0] = (stable_ivalue)(uintptr_t)out[0];
    stack[1] = (stable_ivalue)(uintptr_t)out[1];
}

static const ptac_override max_pool2d = {
    .name = "max_pool2d_with_indices",
    .op = PTAC_OP_MAX_POOL2D,
    .boxed = boxed_forward,
};
PTAC_OVERRIDE(max_pool2d)

/* The tensors of a backward call, as given. */
typedef struct backward_args {
    at_tensor grad, x, indices;
    window_args window;
} backward_args;

static at_tensor stock_backward(const backward_args *args)
{
    const window_args *window = &args->window;
    void *result;

    if (T.cpu_max_pool2d_with_indices_backward) {
        T.cpu_max_pool2d_with_indices_backward(
            &result, args->grad, args->x, at_pair_ints(&window->kernel),
            at_pair_ints(&window->stride), at_pair_ints(&window->padding),
            at_pair_ints(&window->dilation), window->ceil_mode, args->indices);
        return at_adopt(result);
    }

    stable_ivalue stack[9] = {at_box_tensor(args->grad), at_box_tensor(args->x)};
    at_tensor out;
    int32_t dtype = 0;

    T.aoti_torch_get_dtype(args->x, &dtype);
    box_window(window, stack + 2);
    stack[7] = at_box_tensor(args->indices);
    at_call_out("aten::max_pool2d_with_indices_backward", "grad_input", stack, 8,
                &dtype, &out, 1);
    return out;
}

static bool has_sizes(const ptac_view *view, int n_dims, const int64_t *sizes)
{
    if (view->n_dims != n_dims)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (view->sizes[i] != sizes[i])
            return false;
    return true;
}

/* The gradient and the indices must have the pooled sizes and x's layout. */
static ptac_reason check_backward(const ptac_view *x, const ptac_call *call)
{
    const ptac_image *image = &((const ptac_max_pool2d *)call->params)->image;
    const ptac_view *grad = &call->inputs[0], *indices = &call->inputs[1];
    int64_t sizes[4];

    ptac_pooled_sizes(x, image, sizes);
    if (grad->dtype != x->dtype || indices->dtype != PTAC_I64)
        return PTAC_DTYPE;
    if (!has_sizes(grad, x->n_dims, sizes) || !has_sizes(indices, x->n_dims, sizes))
        return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

static at_tensor fast_backward(const backward_args *args)
{
    ptac_max_pool2d params;
    ptac_call call = {.op = PTAC_OP_MAX_POOL2D_BACKWARD, .n_inputs = 2, .n_outputs = 1};
    AT_OWNED at_tensor grad = NULL;
    AT_OWNED at_tensor indices = NULL;
    ptac_view x;

    if (ptac_is_off(call.op))
        return NULL;
    call.params = &params;
    ptac_view_of(args->x, &x);
    ptac_view_of(args->grad, &call.inputs[0]);
    ptac_view_of(args->indices, &call.inputs[1]);

    ptac_reason why = read_params(&args->window, &x, &params);

    if (!why)
        why = check_backward(&x, &call);
    if (why) {
        ptac_refuse(call.op, why);
        return NULL;
    }

    const bool channels_last = params.image.channels_last;

    const ptac_kernel *row = ptac_admit(&call);

    if (!row)
        return NULL;
    grad = at_dense(args->grad, &call.inputs[0], channels_last);
    indices = at_dense(args->indices, &call.inputs[1], channels_last);
    ptac_view_of(grad, &call.inputs[0]);
    ptac_view_of(indices, &call.inputs[1]);

    AT_OWNED at_tensor grad_x =
        ptac_new_image(x.n_dims, x.sizes, channels_last, ptac_torch_dtype_of(x.dtype));

    ptac_view_of(grad_x, &call.outputs[0]);

    const bool shadow = ptac_shadow_due(call.op);
    const int64_t t_start = shadow ? ptac_clock_ns() : 0;

    if (!ptac_run(row, &call))
        return NULL;
    if (shadow) {
        const int64_t t_middle = ptac_clock_ns();
        at_tensor expected = stock_backward(args);

        ptac_shadow_settle(row, &grad_x, &expected, 1, t_middle - t_start,
                           ptac_clock_ns() - t_middle);
    }
    return at_give(&grad_x);
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor x = at_take_tensor(stack, 1);
    AT_OWNED at_tensor indices = at_take_tensor(stack, 7);
    const backward_args args = {grad, x, indices, take_window(stack + 2)};
    at_tensor out = fast_backward(&args);

    stack[0] = (stable_ivalue)(uintptr_t)(out ? out : stock_backward(&args));
}

static const ptac_override max_pool2d_backward = {
    .name = "max_pool2d_with_indices_backward",
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .boxed = boxed_backward,
};
PTAC_OVERRIDE(max_pool2d_backward)
