/*
 * convolution.c - aten::convolution and its backward, to which all convolutions
 * come: 2-d ones of one group may be ours.
 *
 *   convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride,
 *       SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding,
 *       SymInt groups) -> Tensor
 *   convolution_backward(Tensor grad_output, Tensor input, Tensor weight,
 *       SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
 *       bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask)
 *       -> (Tensor, Tensor, Tensor)
 */
#include "bind/torch/rows/bf16.h"
#include "bind/torch/rows/convolution.h"
#include "bind/torch/overrides/override.h"
#include "bind/torch/stock.h"

static ptac_dims take_dims(stable_ivalue boxed)
{
    ptac_dims taken;

    taken.n = at_take_ints(boxed, taken.values);
    return taken;
}

static at_ints ints_of(const ptac_dims *given)
{
    return (at_ints){given->values, (size_t)(given->n > 4 ? 4 : given->n)};
}

static ptac_geometry take_geometry(const stable_ivalue *stack)
{
    return (ptac_geometry){
        .stride = take_dims(stack[0]),
        .padding = take_dims(stack[1]),
        .dilation = take_dims(stack[2]),
        .is_transposed = stack[3] & 0xff,
        .output_padding = take_dims(stack[4]),
        .groups = (int64_t)stack[5],
    };
}

/* torch.jit.trace records what stock's kernel calls in turn. */
static bool is_tracing(void)
{
    return *T.tracing_state() != NULL;
}

typedef struct forward_args {
    at_tensor x, w, bias; /* bias may be NULL */
    ptac_geometry geo;
} forward_args;

static void stock_forward(const void *context, at_tensor *out)
{
    const forward_args *args = context;
    const ptac_geometry *geo = &args->geo;
    const at_optional_tensor bias = {
        .impl = args->bias ? *(void **)args->bias : NULL,
        .has_value = args->bias != NULL,
    };
    at_result result;

    result =
        T.convolution(args->x, args->w, &bias, ints_of(&geo->stride),
                      ints_of(&geo->padding), ints_of(&geo->dilation),
                      geo->is_transposed, ints_of(&geo->output_padding), geo->groups);
    *out = at_adopt(result.words[0]);
}

/* Without memory for the result stock is called, and raises torch's own error. */
static bool new_image(const int64_t *sizes, at_tensor *made, ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (!ptac_conv_try_image(sizes, p->channels_last, made, &call->outputs[0]))
        return true;
    ptac_refuse(call->op, PTAC_MEMORY);
    return false;
}

static bool fast_forward(const forward_args *args, at_tensor *out)
{
    ptac_conv2d params;
    ptac_call call;
    const ptac_kernel *row;
    ptac_reason why;
    int64_t sizes[4];
    const at_tensor inputs[] = {args->x, args->w, args->bias};

    if (ptac_is_off(PTAC_OP_CONV2D))
        return false;
    why = ptac_conv_read(args->x, args->w, args->bias, &args->geo, &params, &call);
    if (!why && is_tracing())
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }
    row = ptac_admit(&call);
    if (!row)
        return false;
    ptac_conv_output_sizes(&params, sizes);

    AT_OWNED at_tensor made = NULL;

    if (!new_image(sizes, &made, &call) ||
        !ptac_run_checked(row, &call, &made, stock_forward, args))
        return false;
    if (row->in_bf16 && !ptac_chooser_is_quarantined(row)) /* by a shadow check */
        ptac_bf16_mark(inputs, 3);
    *out = at_give(&made);
    return true;
}

/* Autograd hands on an undefined tensor where there is none. */
static bool is_defined(at_tensor tensor)
{
    bool is = false;

    if (tensor)
        T.aoti_torch_is_defined(tensor, &is);
    return is;
}

static void boxed_forward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor x = at_take_tensor(stack, 0);
    AT_OWNED at_tensor w = at_take_tensor(stack, 1);
    bool has_bias;
    AT_OWNED at_tensor bias =
        (at_tensor)(uintptr_t)at_open_optional(stack[2], &has_bias);
    const forward_args args = {x, w, is_defined(bias) ? bias : NULL,
                               take_geometry(stack + 3)};
    at_tensor out;

    if (!fast_forward(&args, &out))
        stock_forward(&args, &out);
    stack[0] = (stable_ivalue)(uintptr_t)out;
}

static bool has_convolution(void)
{
    return T.convolution && T.tracing_state;
}

static const ptac_override convolution = {
    .name = "convolution",
    .op = PTAC_OP_CONV2D,
    .boxed = boxed_forward,
    .is_possible = has_convolution,
};
PTAC_OVERRIDE(convolution)

enum {
    DATA,
    WEIGHT,
    BIAS,
    N_GRADS,
};

typedef struct backward_args {
    at_tensor grad, x, w;
    ptac_dims bias_sizes;
    bool has_bias_sizes;
    ptac_geometry geo;
    at_mask3 mask;
} backward_args;

/* Gradients that mask asks for; the others are undefined tensors. */
static void stock_grads(const backward_args *args, at_mask3 mask, at_tensor *out)
{
    const ptac_geometry *geo = &args->geo;
    const at_optional_ints bias_sizes = {ints_of(&args->bias_sizes),
                                         args->has_bias_sizes};
    at_result results;

    results = T.convolution_backward(args->grad, args->x, args->w, bias_sizes,
                                     ints_of(&geo->stride), ints_of(&geo->padding),
                                     ints_of(&geo->dilation), geo->is_transposed,
                                     ints_of(&geo->output_padding), geo->groups, mask);
    for (int i = 0; i < N_GRADS; i++)
        out[i] = at_adopt(results.words[N_GRADS - 1 - i]);
}

/* One of our calls, as stock does it: what shadow checks compare with. */
typedef struct one_result {
    const backward_args *args;
    at_mask3 mask;
} one_result;

static void stock_one(const void *context, at_tensor *out)
{
    const one_result *one = context;
    at_tensor grads[N_GRADS];
    int n = 0;

    stock_grads(one->args, one->mask, grads);
    for (int i = 0; i < N_GRADS; i++) {
        if (one->mask.values[i])
            out[n++] = grads[i];
        else
            at_drop_tensor(&grads[i]);
    }
}

static void drop_grads(at_tensor (*grads)[N_GRADS])
{
    for (int i = 0; i < N_GRADS; i++)
        at_drop_tensor(&(*grads)[i]);
}

#define AT_OWNED_GRADS __attribute__((cleanup(drop_grads)))

/* grad_output, and what it is once a row has been found that needs it without gaps. */
typedef struct gradient {
    at_tensor dense;
    ptac_view view;
} gradient;

static void drop_gradient(gradient *grad)
{
    at_drop_tensor(&grad->dense);
}

#define AT_OWNED_GRADIENT __attribute__((cleanup(drop_gradient)))

static ptac_view dense_view(const backward_args *args, bool channels_last,
                            gradient *grad)
{
    if (!grad->dense) {
        grad->dense = at_dense(args->grad, &grad->view, channels_last);
        ptac_view_of(grad->dense, &grad->view);
    }
    return grad->view;
}

/* Rounds only where the forward call has. */
static const ptac_kernel *admit_gradient(ptac_call *call)
{
    const ptac_kernel *row = ptac_admit(call);

    if (!row || !row->in_bf16 || ptac_bf16_is_marked())
        return row;
    ptac_refuse(call->op, PTAC_FORWARD);
    return NULL;
}

/* The gradient of x; of a transposed convolution's, a convolution of grad_y. */
static bool fast_data(const backward_args *args, gradient *grad, const ptac_view *x,
                      const ptac_view *w, ptac_conv2d *params, at_tensor *out)
{
    const one_result one = {args, {{true, false, false}}};
    ptac_call call = {
        .op = PTAC_OP_CONV2D_BACKWARD,
        .n_inputs = 2,
        .n_outputs = 1,
        .params = params,
        .inputs = {grad->view, *w},
    };
    const ptac_kernel *row;

    params->result = args->geo.is_transposed ? PTAC_CONV_FORWARD : PTAC_CONV_DATA;
    row = admit_gradient(&call);
    if (!row)
        return false;
    call.inputs[0] = dense_view(args, params->channels_last, grad);

    AT_OWNED at_tensor made = NULL;

    if (!new_image(x->sizes, &made, &call) ||
        !ptac_run_checked(row, &call, &made, stock_one, &one))
        return false;
    out[DATA] = at_give(&made);
    return true;
}

/*
 * The gradients of the weight and, where it is asked for, of the bias. In a transposed
 * convolution x and grad_y change places, and the bias is stock's.
 */
static bool fast_weight(const backward_args *args, gradient *grad, const ptac_view *x,
                        const ptac_view *w, ptac_conv2d *params, at_tensor *out)
{
    static const int64_t one_apart = 1;
    const bool is_transposed = args->geo.is_transposed;
    const bool with_bias = args->mask.values[BIAS] && !is_transposed;
    const one_result one = {args, {{false, true, with_bias}}};
    const int64_t n_biases = params->out_channels;
    ptac_call call = {
        .op = PTAC_OP_CONV2D_BACKWARD,
        .n_inputs = 2,
        .n_outputs = with_bias ? 2 : 1,
        .params = params,
        .inputs = {is_transposed ? grad->view : *x, is_transposed ? *x : grad->view},
    };
    const ptac_kernel *row;

    params->result = PTAC_CONV_WEIGHT;
    row = admit_gradient(&call);
    if (!row)
        return false;
    call.inputs[is_transposed ? 0 : 1] = dense_view(args, params->channels_last, grad);

    AT_OWNED_GRADS at_tensor made[N_GRADS] = {NULL};

    if (!new_image(w->sizes, made, &call))
        return false;
    if (with_bias) {
        made[1] = at_empty(1, &n_biases, &one_apart, AT_DTYPE_F32);
        ptac_view_of(made[1], &call.outputs[1]);
    }
    if (!ptac_run_checked(row, &call, made, stock_one, &one))
        return false;
    out[WEIGHT] = at_give(&made[0]);
    out[BIAS] = at_give(&made[1]);
    return true;
}

/* What about grad_output speaks against us. */
static ptac_reason grad_reason(const ptac_view *grad, const ptac_conv2d *p)
{
    int64_t sizes[4];

    if (grad->dtype != PTAC_F32)
        return PTAC_DTYPE;
    ptac_conv_output_sizes(p, sizes);
    for (int i = 0; i < 4; i++)
        if (grad->n_dims != 4 || grad->sizes[i] != sizes[i])
            return PTAC_ARGUMENT;
    return PTAC_TAKE;
}

/* Fill in those gradients that rows of ours serve. */
static void fast_grads(const backward_args *args, at_tensor *out)
{
    AT_OWNED_GRADIENT gradient grad = {NULL};
    ptac_view x, w;
    ptac_conv2d params;
    ptac_reason why;

    ptac_view_of(args->grad, &grad.view);
    ptac_view_of(args->x, &x);
    ptac_view_of(args->w, &w);
    why = ptac_conv_params(&x, &w, &args->geo, &params);
    if (!why)
        why = grad_reason(&grad.view, &params);
    if (!why && is_tracing())
        why = PTAC_MODE;
    if (why) {
        for (int i = DATA; i <= WEIGHT; i++)
            if (args->mask.values[i])
                ptac_refuse(PTAC_OP_CONV2D_BACKWARD, why);
        return;
    }
    if (args->mask.values[DATA])
        fast_data(args, &grad, &x, &w, &params, out);
    if (args->mask.values[WEIGHT])
        fast_weight(args, &grad, &x, &w, &params, out);
}

static at_tensor undefined_tensor(void)
{
    at_tensor made = NULL;

    at_must(T.aoti_torch_new_uninitialized_tensor(&made), "no memory for a handle");
    return made;
}

/* What is asked for and not there yet; what is not asked for is undefined. */
static void add_stock_grads(const backward_args *args, at_tensor *out)
{
    at_tensor rest[N_GRADS] = {NULL};
    at_mask3 left;

    for (int i = 0; i < N_GRADS; i++)
        left.values[i] = args->mask.values[i] && !out[i];
    if (left.values[DATA] || left.values[WEIGHT] || left.values[BIAS])
        stock_grads(args, left, rest);
    for (int i = 0; i < N_GRADS; i++) {
        if (!out[i])
            out[i] = rest[i] ? rest[i] : undefined_tensor();
        else
            at_drop_tensor(&rest[i]);
    }
}

static void boxed_backward(stable_ivalue *stack, uint64_t n_args, uint64_t n_returns)
{
    (void)n_args;
    (void)n_returns;
    PTAC_IN_FLIGHT;
    AT_OWNED at_tensor grad = at_take_tensor(stack, 0);
    AT_OWNED at_tensor x = at_take_tensor(stack, 1);
    AT_OWNED at_tensor w = at_take_tensor(stack, 2);
    AT_OWNED_GRADS at_tensor out[N_GRADS] = {NULL};
    backward_args args = {.grad = grad, .x = x, .w = w};
    const stable_ivalue sizes = at_open_optional(stack[3], &args.has_bias_sizes);
    int64_t mask[4];

    if (args.has_bias_sizes)
        args.bias_sizes = take_dims(sizes);
    args.geo = take_geometry(stack + 4);
    at_take_ints(stack[10], mask);
    for (int i = 0; i < N_GRADS; i++)
        args.mask.values[i] = mask[i] & 0xff;
    if (!ptac_is_off(PTAC_OP_CONV2D_BACKWARD))
        fast_grads(&args, out);

    add_stock_grads(&args, out);
    for (int i = 0; i < N_GRADS; i++)
        stack[i] = (stable_ivalue)(uintptr_t)at_give(&out[i]);
}

static bool has_convolution_backward(void)
{
    return T.convolution_backward && T.tracing_state;
}

static const ptac_override convolution_backward = {
    .name = "convolution_backward",
    .op = PTAC_OP_CONV2D_BACKWARD,
    .boxed = boxed_backward,
    .is_possible = has_convolution_backward,
};
PTAC_OVERRIDE(convolution_backward)
