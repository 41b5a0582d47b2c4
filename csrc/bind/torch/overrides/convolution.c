/*
 * convolution.c - aten::convolution, to which all convolutions come, and its backward.
 *
 * Two-dimensional ones of one group may be ours.
 */
#include "bind/torch/overrides/convolution.h"

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_geometry geo = ptac_conv_geometry(args->at + 3);
    ptac_conv2d *p = params;
    const ptac_reason why = ptac_conv_check(call, &geo, p);

    if (why)
        return why;
    ptac_conv_output_sizes(p, outputs->own_sizes);
    ptac_outputs_are(outputs, 4, outputs->own_sizes);
    outputs->channels_last = p->channels_last;
    outputs->dense = 0;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

static ptac_override convolution = {
    .schema = "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
              "SymInt[] padding, SymInt[] dilation, bool transposed, "
              "SymInt[] output_padding, SymInt groups) -> Tensor",
    .op = PTAC_OP_CONV2D,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read,
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
    .serve = ptac_conv_backward,
    .needs = &T.tracing_state,
};
PTAC_OVERRIDE(convolution_backward, convolution_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), OPTIONAL_INTS(3), INTS(4), INTS(5), INTS(6), BOOL(7), INTS(8),
              INT(9), MASK(10))
