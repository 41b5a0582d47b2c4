/*
 * convolution.c - aten::convolution, to which all convolutions come, and its backward.
 *
 * Those of images and of signals may be ours; depthwise ones are another operator.
 */
#include "bind/torch/overrides/conv/convolution.h"

enum {
    GEOMETRY = 3, /* where it begins among the arguments, */
    BACKWARD_GEOMETRY = 4,
    TRANSPOSED = 3, /* and in it */
    GROUPS = 5,
};

/* Asked of every call: looks at as little as it can. */
static ptac_op op_of(const ptac_view *x, const ptac_view *w,
                     const ptac_argument *geometry, ptac_op depthwise, ptac_op other)
{
    const bool is_depthwise =
        !geometry[TRANSPOSED].truth && ptac_is_depthwise(x, w, geometry[GROUPS].number);

    return is_depthwise ? depthwise : other;
}

static ptac_op forward_op(const ptac_arguments *args)
{
    return op_of(&args->at[0].view, &args->at[1].view, args->at + GEOMETRY,
                 PTAC_OP_DEPTHWISE_CONV2D, PTAC_OP_CONV2D);
}

static ptac_op backward_op(const ptac_arguments *args)
{
    return op_of(&args->at[1].view, &args->at[2].view, args->at + BACKWARD_GEOMETRY,
                 PTAC_OP_DEPTHWISE_CONV2D_BACKWARD, PTAC_OP_CONV2D_BACKWARD);
}

static ptac_reason read_depthwise(const ptac_arguments *args, const ptac_call *call,
                                  ptac_depthwise *p, ptac_outputs *outputs)
{
    const ptac_geometry geo = ptac_conv_geometry(args->at + GEOMETRY);
    const ptac_view *x = &call->inputs[0];
    ptac_reason why = ptac_depthwise_params(x, &call->inputs[1], &geo, p);

    if (!why && call->n_inputs > 2)
        why = ptac_vector_reason(&call->inputs[2], p->channels);
    if (why)
        return why;
    ptac_depthwise_output_sizes(p, x->n_dims, outputs->own_sizes);
    ptac_outputs_are(outputs, x->n_dims, outputs->own_sizes);
    outputs->channels_last = p->channels_last;
    outputs->dense = 0;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_geometry geo = ptac_conv_geometry(args->at + GEOMETRY);
    const ptac_view *x = &call->inputs[0];
    ptac_conv2d *p = params;
    ptac_reason why;

    if (call->op == PTAC_OP_DEPTHWISE_CONV2D)
        return read_depthwise(args, call, params, outputs);
    why = ptac_conv_check(call, &geo, p);
    if (why)
        return why;
    ptac_conv_output_sizes(p, x->n_dims, outputs->own_sizes);
    ptac_outputs_are(outputs, x->n_dims, outputs->own_sizes);
    outputs->channels_last = p->channels_last;
    outputs->dense = 0;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

static ptac_override convolution = {
    .schema = "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
              "SymInt[] padding, SymInt[] dilation, bool transposed, "
              "SymInt[] output_padding, SymInt groups) -> Tensor",
    .op = PTAC_OP_CONV2D,
    .n_others = 1,
    .others = {PTAC_OP_DEPTHWISE_CONV2D},
    .op_of = forward_op,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read,
    .admit = ptac_conv_admit,
    .needs = &T.tracing_state,
    .marks = true,
};
PTAC_OVERRIDE(convolution, convolution, TENSOR(0), TENSOR(1), OPTIONAL_TENSOR(2),
              INTS(3), INTS(4), INTS(5), BOOL(6), INTS(7), INT(8))

static ptac_override convolution_backward = {
    .schema = "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, "
              "SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, "
              "SymInt[] dilation, bool transposed, SymInt[] output_padding, "
              "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_CONV2D_BACKWARD,
    .n_others = 1,
    .others = {PTAC_OP_DEPTHWISE_CONV2D_BACKWARD},
    .op_of = backward_op,
    .serve = ptac_conv_backward,
    .needs = &T.tracing_state,
};
PTAC_OVERRIDE(convolution_backward, convolution_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), OPTIONAL_INTS(3), INTS(4), INTS(5), INTS(6), BOOL(7), INTS(8),
              INT(9), MASK(10))
