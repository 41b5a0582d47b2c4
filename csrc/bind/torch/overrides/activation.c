/*
 * activation.c - aten::_prelu_kernel_backward, aten::mish and its backward.
 */
#include "bind/torch/overrides/override.h"

#include "ops/activation/activation.h"

/* The strides that a new tensor gets, also along dimensions of one element. */
static bool is_as_new(const ptac_view *x, bool *channels_last)
{
    int64_t strides[PTAC_MAX_DIMS], expected = 1;

    *channels_last = !ptac_view_is_contiguous(x) && ptac_view_is_channels_last(x);
    if (*channels_last)
        ptac_image_strides(x->n_dims, x->sizes, true, strides);
    for (int i = x->n_dims - 1; i >= 0 && !*channels_last; i--) {
        strides[i] = expected;
        expected *= x->sizes[i];
    }
    return memcmp(strides, x->strides, (size_t)x->n_dims * sizeof *strides) == 0;
}

/* Outputs as x is, which torch lays them out as where it has no gaps. */
static ptac_reason read_alike(const ptac_call *call, int n_inputs,
                              ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[n_inputs - 1];

    if (x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (!is_as_new(x, &outputs->channels_last))
        return PTAC_LAYOUT;
    for (int i = 0; i < n_inputs; i++) {
        if (call->inputs[i].dtype != x->dtype)
            return PTAC_DTYPE;
        if (!ptac_view_has_sizes(&call->inputs[i], x->n_dims, x->sizes))
            return PTAC_SHAPE;
        if (!ptac_view_is_alike(&call->inputs[i], x))
            return PTAC_LAYOUT;
    }
    ptac_outputs_are(outputs, x->n_dims, x->sizes);
    return PTAC_TAKE;
}

static ptac_reason read_mish(const ptac_arguments *args, const ptac_call *call,
                             void *params, ptac_outputs *outputs)
{
    (void)params;
    return read_alike(call, args->of->n_inputs, outputs);
}

/* One weight, or one of each channel, as torch.nn.functional.prelu() gives them. */
static ptac_reason read_prelu(const ptac_arguments *args, const ptac_call *call,
                              void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[PTAC_PRELU_X];
    const ptac_view *weight = &call->inputs[PTAC_PRELU_WEIGHT];
    const ptac_reason why = read_alike(call, PTAC_PRELU_WEIGHT, outputs);
    ptac_prelu *p = params;

    (void)args;
    if (why)
        return why;
    if (weight->dtype != x->dtype)
        return PTAC_DTYPE;
    outputs->at[1].dtype = outputs->at[0].dtype;
    outputs->dense = 1 << PTAC_PRELU_GRAD | 1 << PTAC_PRELU_X;
    p->channels = weight->n_elements;
    p->inner = 1;
    if (p->channels == 1)
        return weight->n_dims <= x->n_dims ? PTAC_TAKE : PTAC_SHAPE;
    if (x->n_dims < 2 || weight->n_dims != x->n_dims || p->channels != x->sizes[1] ||
        weight->sizes[1] != p->channels || weight->strides[1] != 1)
        return PTAC_SHAPE;
    for (int i = 2; i < x->n_dims && !outputs->channels_last; i++)
        p->inner *= x->sizes[i];
    return PTAC_TAKE;
}

static ptac_override prelu_backward = {
    .schema = "_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) "
              "-> (Tensor, Tensor)",
    .op = PTAC_OP_PRELU_BACKWARD,
    /* No overload leads to this kernel. */
    .self = 1,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read_prelu,
};
PTAC_OVERRIDE(prelu_backward, cpu_prelu_backward, TENSOR(0), TENSOR(1), TENSOR(2))

static ptac_override mish = {
    .schema = "mish(Tensor self) -> Tensor",
    .op = PTAC_OP_MISH,
    .out = "aten::mish.out",
    .n_inputs = 1,
    .read = read_mish,
};
PTAC_OVERRIDE(mish, cpu_mish, TENSOR(0))

static ptac_override mish_backward = {
    .schema = "mish_backward(Tensor grad_output, Tensor self) -> Tensor",
    .op = PTAC_OP_MISH_BACKWARD,
    /* No overload leads to this kernel. */
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_mish,
};
PTAC_OVERRIDE(mish_backward, cpu_mish_backward, TENSOR(0), TENSOR(1))
