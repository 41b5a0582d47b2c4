/*
 * convolution.c - aten::convolution, to which all convolutions come, and its backward.
 *
 * Two-dimensional ones of one group may be ours.
 */
#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/bf16.h"
#include "bind/torch/rows/convolution.h"

/* The six arguments that describe a convolution. */
static ptac_geometry geometry(const ptac_argument *options)
{
    return (ptac_geometry){
        .stride = options[0].ints,
        .padding = options[1].ints,
        .dilation = options[2].ints,
        .is_transposed = options[3].truth,
        .output_padding = options[4].ints,
        .groups = options[5].number,
    };
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    const ptac_geometry geo = geometry(args->at + 3);
    ptac_conv2d *p = params;
    const ptac_reason why = ptac_conv_check(call, &geo, p);

    if (why)
        return why;
    ptac_conv_output_sizes(p, output->own_sizes);
    output->n_dims = 4;
    output->sizes = output->own_sizes;
    output->channels_last = p->channels_last;
    output->dense = 0;
    return ptac_is_tracing() ? PTAC_MODE : PTAC_TAKE;
}

/* The gradient rounds only where forward has, and asks for this mark. */
static void mark(const ptac_arguments *args, const ptac_kernel *row)
{
    const at_tensor inputs[] = {args->at[0].tensor, args->at[1].tensor,
                                args->at[2].tensor};

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
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read,
    .is_possible = can_see_tracing,
    .served = mark,
};
PTAC_OVERRIDE(convolution, convolution, TENSOR(0), TENSOR(1), &OPTIONAL_TENSOR(2),
              INTS(3), INTS(4), INTS(5), BOOL(6), INTS(7), INT(8))

/* Stock's gradients of those that mask asks for. */
static void stock(const void *context, const bool mask[3], at_tensor *out)
{
    ptac_arguments args = *(const ptac_arguments *)context;

    for (int i = 0; i < 3; i++)
        args.at[10].ints.values[i] = mask[i];
    ptac_override_stock(&args, out);
}

static bool serve(const ptac_arguments *args, at_tensor *out)
{
    const int64_t *mask = args->at[10].ints.values;
    const ptac_conv_gradients gradients = {
        .grad = args->at[0].tensor,
        .grad_view = &args->at[0].view,
        .x = &args->at[1].view,
        .w = &args->at[2].view,
        .geo = geometry(args->at + 4),
        .wants = {mask[0], mask[1], mask[2]},
        .stock = stock,
        .context = args,
    };

    return ptac_conv_backward(&gradients, out);
}

static ptac_override convolution_backward = {
    .schema = "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, "
              "SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, "
              "SymInt[] dilation, bool transposed, SymInt[] output_padding, "
              "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_CONV2D_BACKWARD,
    .serve = serve,
    .is_possible = can_see_tracing,
};
PTAC_OVERRIDE(convolution_backward, convolution_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), OPTIONAL_INTS(3), INTS(4), INTS(5), INTS(6), BOOL(7), INTS(8),
              INT(9), MASK(10))
