/*
 * convolution_gradients.c - the gradients of a convolution: two calls of rows of ours,
 * for the data and for the weight, and stock for what they leave.
 */
#include "bind/torch/overrides/convolution.h"
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
    const ptac_kernel *row = ptac_admit(call);

    if (!row || !row->in_bf16 || ptac_bf16_is_marked())
        return row;
    ptac_refuse(call->op, PTAC_FORWARD);
    return NULL;
}

static at_error make_outputs(const ptac_arguments *args, bool is_weight,
                             ptac_call *call, at_tensor *made)
{
    const ptac_conv2d *p = call->params;
    const int64_t *sizes = args->at[is_weight ? W : X].view.sizes;
    const int64_t n_biases = p->out_channels;

    return ptac_new_images(PTAC_F32, sizes, p->channels_last, &made[0],
                           &call->outputs[0]) ||
           (call->n_outputs > 1 &&
            ptac_new(PTAC_F32, 1, &n_biases, NULL, &made[1], &call->outputs[1]));
}

/*
 * The gradient of x, in a transposed convolution a convolution of grad_y; or those of
 * the weight and, where it is asked for, of the bias. For the weight of a transposed
 * convolution x and grad_y change places, and the bias is stock's. Once there is a row,
 * grad is the view of *dense, which has no gaps.
 */
static void try_row(const ptac_arguments *args, bool is_weight, ptac_view *grad,
                    at_tensor *dense, ptac_conv2d *params, at_tensor *out)
{
    const bool is_transposed = args->at[IS_TRANSPOSED].truth;
    const bool with_bias = is_weight && BOOLS(MASK)[BIAS] && !is_transposed;
    const int place = is_weight && !is_transposed; /* of grad_y */
    const some_gradients one = {args, {!is_weight, is_weight, with_bias}};
    ptac_call call = {
        .op = PTAC_OP_CONV2D_BACKWARD,
        .n_inputs = 2,
        .n_outputs = with_bias ? 2 : 1,
        .params = params,
    };
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const ptac_kernel *row;

    params->result = is_weight       ? PTAC_CONV_WEIGHT
                     : is_transposed ? PTAC_CONV_FORWARD
                                     : PTAC_CONV_DATA;
    call.inputs[place] = *grad;
    call.inputs[!place] = args->at[is_weight ? X : W].view;
    row = admit(&call);
    if (!row)
        return;
    if (!*dense) {
        *dense = at_dense(TENSOR(GRAD_Y), grad, params->channels_last);
        ptac_view_of(*dense, grad);
    }
    call.inputs[place] = *grad;
    /* Without memory for the result stock is called, and raises torch's own error. */
    if (make_outputs(args, is_weight, &call, made.at)) {
        ptac_refuse(call.op, PTAC_MEMORY);
        return;
    }
    if (!ptac_run_checked(row, &call, call.n_outputs, made.at, stock_one, &one))
        return;
    out[is_weight ? WEIGHT : DATA] = at_give(&made.at[0]);
    if (with_bias)
        out[BIAS] = at_give(&made.at[1]);
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
    const ptac_geometry geo = ptac_conv_geometry(args->at + GEOMETRY);
    AT_OWNED at_tensor dense = NULL;
    ptac_view grad = args->at[GRAD_Y].view;
    AT_OWNED_ALL at_tensors made = {{NULL}};
    ptac_conv2d params;
    ptac_reason why =
        ptac_conv_params(&args->at[X].view, &args->at[W].view, &geo, &params);

    if (!why)
        why = grad_reason(&grad, &params);
    if (!why && ptac_is_tracing())
        why = PTAC_MODE;
    for (int i = DATA; i <= WEIGHT; i++) {
        if (why && BOOLS(MASK)[i])
            ptac_refuse(PTAC_OP_CONV2D_BACKWARD, why);
        else if (BOOLS(MASK)[i])
            try_row(args, i == WEIGHT, &grad, &dense, &params, made.at);
    }
    if (!made.at[DATA] && !made.at[WEIGHT])
        return false;
    add_stock(args, made.at);
    for (int i = 0; i < N_GRADS; i++)
        out[i] = at_give(&made.at[i]);
    return true;
}
