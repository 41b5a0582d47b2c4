/*
 * convolution.c - aten::convolution, to which all convolutions come.
 *
 * Two-dimensional ones of one group may be ours.
 */
#include "bind/torch/overrides/convolution.h"

static at_result forward(const ptac_arguments *args)
{
    const at_tensor b = args->at[2].is_given ? ptac_tensor(args, 2) : NULL;
    const at_optional_tensor bias = {b ? *(void **)b : NULL, b != NULL};

    return T.convolution(ptac_tensor(args, 0), ptac_tensor(args, 1), &bias,
                         ptac_ints(args, 3), ptac_ints(args, 4), ptac_ints(args, 5),
                         args->at[6].truth, ptac_ints(args, 7), args->at[8].number);
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    const ptac_geometry geo = ptac_conv_geometry(args, 3);
    ptac_conv2d *p = params;
    const ptac_reason why = ptac_conv_check(call, &geo, p);

    if (why)
        return why;
    ptac_conv_output_sizes(p, output->own_sizes);
    output->n_dims = 4;
    output->sizes = output->own_sizes;
    output->channels_last = p->channels_last;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

/* The gradient rounds only where forward has, and asks for this mark. */
static void mark(const ptac_arguments *args, const ptac_kernel *row)
{
    const at_tensor inputs[] = {ptac_tensor(args, 0), ptac_tensor(args, 1),
                                args->at[2].is_given ? ptac_tensor(args, 2) : NULL};

    if (row->in_bf16 && !ptac_chooser_is_quarantined(row)) /* by a shadow check */
        ptac_bf16_mark(inputs, 3);
}

static bool can_see_tracing(void)
{
    return T.tracing_state;
}

static ptac_override convolution = {
    .schema = "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
              "SymInt[] padding, SymInt[] dilation, bool transposed, "
              "SymInt[] output_padding, SymInt groups) -> Tensor",
    .op = PTAC_OP_CONV2D,
    .kernel = forward,
    .symbol = &T.convolution,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .keeps_layout = true,
    .read = read,
    .is_possible = can_see_tracing,
    .served = mark,
};
PTAC_OVERRIDE(convolution)
