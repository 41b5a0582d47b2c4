/*
 * activation.c - aten::_prelu_kernel_backward; aten's activations without a Scalar, and
 * ELU, which SELU and CELU call as well; their gradients.
 */
#include "bind/torch/overrides/alike.h"

#include "ops/activation/activation.h"

static ptac_reason read_curve(const ptac_arguments *args, const ptac_call *call,
                              void *params, ptac_outputs *outputs)
{
    (void)params;
    return ptac_outputs_alike(call, 0, args->of->n_inputs, outputs);
}

static bool is_text(const at_text *text, const char *expected)
{
    return text->length == strlen(expected) &&
           memcmp(text->text, expected, text->length) == 0;
}

/* No two dimensions of grad lie in another order than x's; an expanded one has none. */
static bool is_in_order_of(const ptac_view *grad, const ptac_view *x)
{
    for (int i = 1; i < x->n_dims; i++)
        for (int j = 0; j < i; j++) {
            const int64_t a = grad->strides[i], b = grad->strides[j];

            if (a && b &&
                ((a > b) != (x->strides[i] > x->strides[j]) ||
                 (a < b) != (x->strides[i] < x->strides[j])))
                return false;
        }
    return true;
}

static ptac_reason read_gelu(const ptac_arguments *args, const ptac_call *call,
                             void *params, ptac_outputs *outputs)
{
    const at_text *how = &args->at[args->of->n_arguments - 1].text;
    const ptac_view *x = &call->inputs[args->of->n_inputs - 1];
    ptac_gelu *p = params;

    p->is_tanh = is_text(how, "tanh");
    p->is_onednn =
        x->n_elements > 1 && ptac_view_is_contiguous(x) && !ptac_onednn_is_off();
    if (!p->is_tanh && !is_text(how, "none"))
        return PTAC_ARGUMENT;
    if (x->dtype != call->inputs[0].dtype)
        return PTAC_DTYPE;
    if (!ptac_view_has_sizes(&call->inputs[0], x->n_dims, x->sizes))
        return PTAC_SHAPE;
    /*
     * A gradient that lies otherwise, as that of a sum does, is made dense, but where
     * stock's result would lie as it does.
     */
    if (!ptac_view_is_alike(&call->inputs[0], x) &&
        !is_in_order_of(&call->inputs[0], x))
        return PTAC_LAYOUT;
    return ptac_outputs_alike(call, args->of->n_inputs - 1, args->of->n_inputs,
                              outputs);
}

/* One weight, or one of each channel, as torch.nn.functional.prelu() gives them. */
static ptac_reason read_prelu(const ptac_arguments *args, const ptac_call *call,
                              void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[PTAC_PRELU_X];
    const ptac_view *weight = &call->inputs[PTAC_PRELU_WEIGHT];
    const ptac_reason why = ptac_outputs_alike(call, 0, PTAC_PRELU_WEIGHT, outputs);
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

static ptac_override gelu = {
    .schema = "gelu(Tensor self, *, str approximate='none') -> Tensor",
    .op = PTAC_OP_GELU,
    .out = "aten::gelu.out",
    .n_inputs = 1,
    .read = read_gelu,
};
PTAC_OVERRIDE(gelu, cpu_gelu, TENSOR(0), TEXT(1))

static ptac_override gelu_backward = {
    .schema =
        "gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') "
        "-> Tensor",
    .op = PTAC_OP_GELU_BACKWARD,
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_gelu,
};
PTAC_OVERRIDE(gelu_backward, cpu_gelu_backward, TENSOR(0), TENSOR(1), TEXT(2))

/* name(self), of which torch has the overload out as well. */
#define CURVE(name, id)                                                                \
    static ptac_override name = {                                                      \
        .schema = #name "(Tensor self) -> Tensor",                                     \
        .op = PTAC_OP_##id,                                                            \
        .out = "aten::" #name ".out",                                                  \
        .n_inputs = 1,                                                                 \
        .read = read_curve,                                                            \
    };                                                                                 \
    PTAC_OVERRIDE(name, cpu_##name, TENSOR(0))

/* name(grad_output, self); not all have an overload that leads to their kernel. */
#define GRADIENT(name, id)                                                             \
    static ptac_override name = {                                                      \
        .schema = #name "(Tensor grad_output, Tensor self) -> Tensor",                 \
        .op = PTAC_OP_##id,                                                            \
        .self = 1,                                                                     \
        .n_inputs = 2,                                                                 \
        .inputs = {0, 1},                                                              \
        .read = read_curve,                                                            \
    };                                                                                 \
    PTAC_OVERRIDE(name, cpu_##name, TENSOR(0), TENSOR(1))

CURVE(mish, MISH)
CURVE(tanh, TANH)
CURVE(sigmoid, SIGMOID)
CURVE(silu, SILU)
CURVE(hardswish, HARDSWISH)
CURVE(hardsigmoid, HARDSIGMOID)
GRADIENT(mish_backward, MISH_BACKWARD)
GRADIENT(silu_backward, SILU_BACKWARD)
GRADIENT(hardswish_backward, HARDSWISH_BACKWARD)
GRADIENT(hardsigmoid_backward, HARDSIGMOID_BACKWARD)

/* alpha, scale and input_scale: arguments 1 to 3 of both. */
static ptac_reason read_elu(const ptac_arguments *args, const ptac_call *call,
                            void *params, ptac_outputs *outputs)
{
    const ptac_argument *alpha = &args->at[1], *scale = &args->at[2];
    const ptac_argument *input_scale = &args->at[3];
    ptac_elu *p = params;

    if (!alpha->is_given || !scale->is_given || !input_scale->is_given)
        return PTAC_ARGUMENT;
    *p = ptac_elu_of(alpha->value, scale->value, input_scale->value);
    if (p->input_scale < 0) /* what is below 0 may overflow */
        return PTAC_ARGUMENT;
    return ptac_outputs_alike(call, 0, args->of->n_inputs, outputs);
}

static ptac_reason read_elu_gradient(const ptac_arguments *args, const ptac_call *call,
                                     void *params, ptac_outputs *outputs)
{
    const ptac_reason why = read_elu(args, call, params, outputs);
    const bool is_result = args->at[4].truth;

    ((ptac_elu *)params)->is_result = is_result;
    /* With a negative slope no result tells what it was made of: torch says so. */
    return !why && is_result && args->at[1].value < 0 ? PTAC_ARGUMENT : why;
}

static ptac_override elu = {
    .schema = "elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) "
              "-> Tensor",
    .op = PTAC_OP_ELU,
    .n_inputs = 1,
    .read = read_elu,
};
PTAC_OVERRIDE(elu, cpu_elu, TENSOR(0), SCALAR(1), SCALAR(2), SCALAR(3))

static ptac_override elu_backward = {
    .schema = "elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, "
              "Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor",
    .op = PTAC_OP_ELU_BACKWARD,
    .n_inputs = 2,
    .inputs = {0, 5},
    .read = read_elu_gradient,
};
PTAC_OVERRIDE(elu_backward, cpu_elu_backward, TENSOR(0), SCALAR(1), SCALAR(2),
              SCALAR(3), BOOL(4), TENSOR(5))
