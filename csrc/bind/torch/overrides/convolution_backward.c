/*
 * convolution_backward.c - aten::convolution_backward: two calls of rows of ours, for
 * the data and for the weight, and stock for what they leave.
 */
#include "bind/torch/overrides/convolution.h"

enum {
    DATA,
    WEIGHT,
    BIAS,
    N_GRADS,
};

/* The arguments by name. */
typedef struct backward_args {
    const ptac_arguments *all;
    at_tensor grad;
    ptac_geometry geo;
    at_mask3 mask;
} backward_args;

static backward_args named(const ptac_arguments *args)
{
    const int64_t *mask = args->at[10].ints.values;

    return (backward_args){args,
                           ptac_tensor(args, 0),
                           ptac_conv_geometry(args, 4),
                           {{mask[DATA], mask[WEIGHT], mask[BIAS]}}};
}

/* Gradients that mask asks for; the others are undefined tensors. */
static void stock_grads(const ptac_arguments *args, at_mask3 mask, at_tensor *out)
{
    const at_optional_ints bias_sizes = {ptac_ints(args, 3), args->at[3].is_given};
    const at_result result = T.convolution_backward(
        ptac_tensor(args, 0), ptac_tensor(args, 1), ptac_tensor(args, 2), bias_sizes,
        ptac_ints(args, 4), ptac_ints(args, 5), ptac_ints(args, 6), args->at[7].truth,
        ptac_ints(args, 8), args->at[9].number, mask);

    for (int i = 0; i < N_GRADS; i++)
        out[i] = at_adopt(result.words[N_GRADS - 1 - i]);
}

static void stock(const ptac_arguments *args, at_tensor *out)
{
    stock_grads(args, named(args).mask, out);
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

    stock_grads(one->args->all, one->mask, grads);
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

/* Without memory for the result stock is called, and raises torch's own error. */
static bool new_image(const int64_t *sizes, at_tensor *made, ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (!ptac_conv_try_image(sizes, p->channels_last, made, &call->outputs[0]))
        return true;
    ptac_refuse(call->op, PTAC_MEMORY);
    return false;
}

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
    return ptac_view_has_sizes(grad, 4, sizes) ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* Fill in those gradients that rows of ours serve. */
static void fast_grads(const backward_args *args, at_tensor *out)
{
    AT_OWNED_GRADIENT gradient grad = {NULL};
    const ptac_view *x = &args->all->at[1].view, *w = &args->all->at[2].view;
    ptac_conv2d params;
    ptac_reason why = ptac_conv_params(x, w, &args->geo, &params);

    grad.view = args->all->at[0].view;
    if (!why)
        why = grad_reason(&grad.view, &params);
    if (!why && ptac_is_tracing())
        why = PTAC_MODE;
    if (why) {
        for (int i = DATA; i <= WEIGHT; i++)
            if (args->mask.values[i])
                ptac_refuse(PTAC_OP_CONV2D_BACKWARD, why);
        return;
    }
    if (args->mask.values[DATA])
        fast_data(args, &grad, x, w, &params, out);
    if (args->mask.values[WEIGHT])
        fast_weight(args, &grad, x, w, &params, out);
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
        stock_grads(args->all, left, rest);
    for (int i = 0; i < N_GRADS; i++) {
        if (!out[i])
            out[i] = rest[i] ? rest[i] : undefined_tensor();
        else
            at_drop_tensor(&rest[i]);
    }
}

static bool serve(const ptac_arguments *all, at_tensor *out)
{
    const backward_args args = named(all);
    AT_OWNED_GRADS at_tensor made[N_GRADS] = {NULL};

    fast_grads(&args, made);
    add_stock_grads(&args, made);
    for (int i = 0; i < N_GRADS; i++)
        out[i] = at_give(&made[i]);
    return true;
}

static bool is_possible(void)
{
    return T.convolution_backward && T.tracing_state;
}

static ptac_override convolution_backward = {
    .schema = "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, "
              "SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, "
              "SymInt[] dilation, bool transposed, SymInt[] output_padding, "
              "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_CONV2D_BACKWARD,
    .stock = stock,
    .serve = serve,
    .is_possible = is_possible,
};
PTAC_OVERRIDE(convolution_backward)
