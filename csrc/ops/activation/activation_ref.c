/*
 * activation_ref.c - activations and their gradients by their definitions, Mish in
 * double, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/activation/activation.h"

#include <math.h>

/* Channels of few elements next to each other, or many, have loops of their own. */
static ptac_reason classify_prelu(const ptac_call *call, ptac_shape *shape)
{
    const ptac_prelu *p = call->params;
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = p->channels > 1 && p->inner < 16;
    return why;
}

PTAC_SHAPES(PRELU_BACKWARD, classify_prelu, "planes", "pixels")
PTAC_SHAPES(MISH, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(MISH_BACKWARD, ptac_classify_elements, "any")

ptac_reason ptac_activation_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static void prelu(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_prelu *p = call->params;
    const float *grad = call->inputs[PTAC_PRELU_GRAD].data;
    const float *x = call->inputs[PTAC_PRELU_X].data;
    const float *weight = call->inputs[PTAC_PRELU_WEIGHT].data;
    float *of_x = call->outputs[0].data, *of_weight = call->outputs[1].data;

    for (int64_t i = begin; i < end; i++) {
        const float w = weight[i / p->inner % p->channels];

        of_x[i] = x[i] > 0 ? grad[i] : w * grad[i];
        of_weight[i] = x[i] > 0 ? 0 : x[i] * grad[i];
    }
}

static void mish(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++)
        y[i] = (float)(x[i] * tanh(log1p(exp(x[i]))));
}

static void mish_gradient(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const float *grad = call->inputs[PTAC_MISH_GRAD].data;
    const float *x = call->inputs[PTAC_MISH_GRAD_X].data;
    float *of_x = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const double t = tanh(log1p(exp(x[i]))), sigmoid = 1 / (1 + exp(-(double)x[i]));

        of_x[i] = (float)(grad[i] * (t + x[i] * sigmoid * (1 - t * t)));
    }
}

#define DEFINE_RUN(function)                                                           \
    static ptac_status run_##function(const ptac_call *call)                           \
    {                                                                                  \
        ptac_share_elements(call, function);                                           \
        return PTAC_OK;                                                                \
    }
DEFINE_RUN(prelu)
DEFINE_RUN(mish)
DEFINE_RUN(mish_gradient)

PTAC_ROW(PRELU_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_activation_accepts, run_prelu)
PTAC_ROW(MISH, "scalar", PTAC_CLOSE, 0, ptac_activation_accepts, run_mish)
PTAC_ROW(MISH_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_activation_accepts,
         run_mish_gradient)
