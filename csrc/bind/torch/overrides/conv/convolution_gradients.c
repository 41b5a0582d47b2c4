/*
 * convolution_gradients.c - the gradients of a convolution: two calls of rows of ours,
 * for the data and for the weight, and stock for what they leave.
 */
#include "bind/torch/overrides/conv/convolution.h"
#include "bind/torch/rows/bf16.h"

enum {
    DATA,
    WEIGHT,
    BIAS,
    N_GRADS,
    /* Arguments of aten::convolution_backward: */
    GRAD_Y = 0,
    X,
    W,
    GEOMETRY = 4,
    IS_TRANSPOSED = 7,
    MASK = 10,
};

/* Some of the gradients of a call. */
typedef struct some_gradients {
    const ptac_arguments *of;
    bool mask[N_GRADS];
} some_gradients;

/* By stock; the others are undefined tensors. */
static void stock(const some_gradients *some, at_tensor *out)
{
    ptac_arguments args = *some->of;

    for (int i = 0; i < N_GRADS; i++)
        args.at[MASK].ints.values[i] = some->mask[i];
    ptac_override_stock(&args, out);
}

/* One of our calls, as stock does it: what shadow checks compare with. */
static void stock_one(const void *context, at_tensor *out)
{
    const some_gradients *one = context;
    AT_OWNED_ALL at_tensors grads = {{NULL}};
    int n = 0;

    stock(one, grads.at);
    for (int i = 0; i < N_GRADS; i++)
        if (one->mask[i])
            out[n++] = at_give(&grads.at[i]);
}

/* Rounds only where the forward call has. */
static const ptac_kernel *admit(ptac_call *call)
{
    const ptac_kernel *row = ptac_conv_admit(call);

    if (!row || !row->in_bf16 || ptac_bf16_is_marked())
        return row;
    ptac_refuse(call->op, PTAC_FORWARD);
    return NULL;
}

/* The operator's own params, and what is in them. */
typedef struct gradient_calls {
    const ptac_arguments *args;
    ptac_op op;
    union {
        ptac_conv2d conv2d;
        ptac_depthwise depthwise;
    } params;
    ptac_conv_result *result;
    bool channels_last;
    ptac_view grad;
    at_tensor dense; /* grad without gaps, once there is a row; then grad is its view */
} gradient_calls;

static at_error make_outputs(const gradient_calls *calls, bool is_weight,
                             bool with_bias, ptac_call *call, at_tensor *made)
{
    const ptac_view *like = &calls->args->at[is_weight ? W : X].view;
    const int64_t *n_biases = &calls->grad.sizes[1];
    int64_t strides[4];

    if (calls->channels_last)
        ptac_image_strides(4, like->sizes, true, strides);
    return ptac_new(PTAC_F32, like->n_dims, like->sizes,
                    calls->channels_last ? strides : NULL, &made[0],
                    &call->outputs[0]) ||
           (with_bias &&
            ptac_new(PTAC_F32, 1, n_biases, NULL, &made[1], &call->outputs[1]));
}

/*
 * The gradient of x, in a transposed convolution a convolution of grad_y; or those of
 * the weight and, where it is asked for, of the bias. For the weight of a transposed
 * convolution x and grad_y change places, and the bias is no row's.
 */
static void try_row(gradient_calls *calls, bool is_weight, at_tensor *out)
{
    const ptac_arguments *args = calls->args;
    const bool is_transposed = args->at[IS_TRANSPOSED].truth;
    const bool with_bias = is_weight && BOOLS(MASK)[BIAS];
    const int place = is_weight && !is_transposed; /* of grad_y */
    const some_gradients one = {args, {!is_weight, is_weight, with_bias}};
    ptac_call call = {
        .op = calls->op,
        .n_inputs = 2,
        .n_outputs = with_bias && !is_transposed ? 2 : 1,
        .params = &calls->params,
    };
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const ptac_kernel *row;

    *calls->result = is_weight       ? PTAC_CONV_WEIGHT
                     : is_transposed ? PTAC_CONV_FORWARD
                                     : PTAC_CONV_DATA;
    call.inputs[place] = calls->grad;
    call.inputs[!place] = args->at[is_weight ? X : W].view;
    row = admit(&call);
    if (!row)
        return;
    if (!calls->dense) {
        calls->dense = at_dense(TENSOR(GRAD_Y), &calls->grad, calls->channels_last);
        ptac_view_of(calls->dense, &calls->grad);
    }
    call.inputs[place] = calls->grad;
    /* Without memory for the result stock is called, and raises torch's own error. */
    if (make_outputs(calls, is_weight, with_bias, &call, made.at)) {
        ptac_refuse(call.op, PTAC_MEMORY);
        return;
    }
    if (with_bias && is_transposed)
        ptac_conv_bias_gradient(&calls->grad, call.outputs[1].data);
    if (!ptac_run_checked(row, &call, 1 + with_bias, made.at, stock_one, &one))
        return;
    out[is_weight ? WEIGHT : DATA] = at_give(&made.at[0]);
    if (with_bias)
        out[BIAS] = at_give(&made.at[1]);
}

/* Fill in what the calls share, or say what about them speaks against us. */
static ptac_reason read(gradient_calls *calls)
{
    const ptac_geometry geo = ptac_conv_geometry(calls->args->at + GEOMETRY);
    const ptac_view *x = &calls->args->at[X].view, *w = &calls->args->at[W].view;
    ptac_conv2d *conv2d = &calls->params.conv2d;
    ptac_depthwise *depthwise = &calls->params.depthwise;
    const bool is_depthwise = calls->op == PTAC_OP_DEPTHWISE_CONV2D_BACKWARD;
    const ptac_reason why = is_depthwise ? ptac_depthwise_params(x, w, &geo, depthwise)
                                         : ptac_conv_params(x, w, &geo, conv2d);
    int64_t sizes[PTAC_VOLUMES];

    if (why)
        return why;
    if (is_depthwise)
        ptac_depthwise_output_sizes(depthwise, x->n_dims, sizes);
    else
        ptac_conv_output_sizes(conv2d, x->n_dims, sizes);
    calls->result = is_depthwise ? &depthwise->result : &conv2d->result;
    calls->channels_last =
        is_depthwise ? depthwise->channels_last : conv2d->channels_last;
    if (calls->grad.dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!ptac_view_has_sizes(&calls->grad, x->n_dims, sizes))
        return PTAC_ARGUMENT;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

static void drop_dense(gradient_calls *calls)
{
    at_drop_tensor(&calls->dense);
}

/* What is asked for and not there yet; what is not asked for is undefined. */
static void add_stock(const ptac_arguments *args, at_tensor *out)
{
    AT_OWNED_ALL at_tensors rest = {{NULL}};
    some_gradients left = {.of = args};

    for (int i = 0; i < N_GRADS; i++)
        left.mask[i] = BOOLS(MASK)[i] && !out[i];
    if (left.mask[DATA] || left.mask[WEIGHT] || left.mask[BIAS])
        stock(&left, rest.at);
    for (int i = 0; i < N_GRADS; i++) {
        if (out[i])
            continue;
        out[i] = at_give(&rest.at[i]);
        if (!out[i])
            at_must(T.aoti_torch_new_uninitialized_tensor(&out[i]),
                    "no memory for a handle");
    }
}

bool ptac_conv_backward(const ptac_arguments *args, at_tensor *out)
{
    __attribute__((cleanup(drop_dense))) gradient_calls calls = {
        .args = args,
        .op = args->of->op_of(args),
        .grad = args->at[GRAD_Y].view,
    };
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const ptac_reason why = read(&calls);

    for (int i = DATA; i <= WEIGHT; i++) {
        if (why && BOOLS(MASK)[i])
            ptac_refuse(calls.op, why);
        else if (BOOLS(MASK)[i])
            try_row(&calls, i == WEIGHT, made.at);
    }
    if (!made.at[DATA] && !made.at[WEIGHT])
        return false;
    add_stock(args, made.at);
    for (int i = 0; i < N_GRADS; i++)
        out[i] = at_give(&made.at[i]);
    return true;
}
