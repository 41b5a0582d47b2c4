/*
 * curves_ref.c - GELU, tanh, sigmoid, SiLU and their gradients by their definitions, in
 * double; Hardswish, Hardsigmoid and theirs in ATen's steps; their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/activation/activation.h"

#include <math.h>

#define SQRT_1_2  0.70710678118654752440
#define SQRT_2_PI 0.79788456080286535588 /* sqrt(2 / pi) */
#define CUBIC     0.044715

static ptac_reason classify_gelu(const ptac_call *call, ptac_shape *shape)
{
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = ((const ptac_gelu *)call->params)->is_tanh;
    return why;
}

ptac_reason ptac_classify_curve(const ptac_call *call, ptac_shape *shape)
{
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind =
        call->outputs[0].data && call->outputs[0].data == call->inputs[0].data;
    return why;
}

PTAC_SHAPES(GELU, classify_gelu, "erf", "tanh")
PTAC_SHAPES(GELU_BACKWARD, classify_gelu, "erf", "tanh")
PTAC_SHAPES(TANH, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(SIGMOID, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(SILU, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(SILU_BACKWARD, ptac_classify_elements, "any")
PTAC_SHAPES(HARDSWISH, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(HARDSWISH_BACKWARD, ptac_classify_elements, "any")
PTAC_SHAPES(HARDSIGMOID, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(HARDSIGMOID_BACKWARD, ptac_classify_elements, "any")

static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

static double normal(double x)
{
    return 0.5 * erfc(-x * SQRT_1_2);
}

static double gelu_slope(double x)
{
    return normal(x) + x * 0.5 * SQRT_2_PI * exp(-0.5 * x * x);
}

static double inner(double x)
{
    return SQRT_2_PI * (x + CUBIC * x * x * x);
}

/* The square is a float, as ATen's: where it is infinite, the result is NaN. */
static double gelu_tanh_slope(float x)
{
    const double s = sigmoid_of(2 * inner(x));
    const float square = x * x;

    return s + x * (2 * s * (1 - s)) * (SQRT_2_PI * (1 + 3 * CUBIC * square));
}

static double silu_slope(double x)
{
    const double s = sigmoid_of(x);

    return s + x * s * sigmoid_of(-x);
}

static float relu6(float x)
{
    const float above = x < 0 ? 0 : x; /* NaN stays */

    return above > 6 ? 6 : above;
}

/* Beyond the ends NaN is not there: it has given the call back. */
static float hardswish_gradient_of(float grad, float x)
{
    const float slope = x / 3 + 0.5f;

    if (x < -3)
        return 0;
    return x >= 3 ? grad : grad * slope;
}

#define CURVE(name, value)                                                             \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *at = call->inputs[0].data;                                        \
        float *y = call->outputs[0].data;                                              \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const float x = at[i];                                                     \
                                                                                       \
            y[i] = (float)(value);                                                     \
        }                                                                              \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        ptac_share_elements(call, name);                                               \
        return PTAC_OK;                                                                \
    }

#define GRADIENT(name, value)                                                          \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *grads = call->inputs[PTAC_MISH_GRAD].data;                        \
        const float *at = call->inputs[PTAC_MISH_GRAD_X].data;                         \
        float *of_x = call->outputs[0].data;                                           \
                                                                                       \
        for (int64_t i = begin; i < end; i++) {                                        \
            const float grad = grads[i], x = at[i];                                    \
                                                                                       \
            of_x[i] = (float)(value);                                                  \
        }                                                                              \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        ptac_share_elements(call, name);                                               \
        return PTAC_OK;                                                                \
    }

CURVE(gelu_erf, x *normal(x))
CURVE(gelu_onednn, x *(normal(x) + 0.0 * x))
CURVE(gelu_tanh, x *sigmoid_of(2 * inner(x)))
CURVE(tangent, tanh(x))
CURVE(sigmoid, sigmoid_of(x))
CURVE(silu, x *sigmoid_of(x))
CURVE(hardswish, x *relu6(x + 3) / 6)
CURVE(hardsigmoid, relu6(x + 3) / 6)
GRADIENT(gelu_erf_gradient, grad *gelu_slope(x))
GRADIENT(gelu_tanh_gradient, grad *gelu_tanh_slope(x))
GRADIENT(silu_gradient, grad *silu_slope(x))
GRADIENT(hardswish_gradient, hardswish_gradient_of(grad, x))
GRADIENT(hardsigmoid_gradient, x > -3 && x < 3 ? grad * (1.0f / 6) : 0)

static ptac_status run_gelu(const ptac_call *call)
{
    const ptac_gelu *p = call->params;

    if (p->is_tanh)
        return run_gelu_tanh(call);
    return (p->is_onednn ? run_gelu_onednn : run_gelu_erf)(call);
}

static ptac_status run_gelu_gradient(const ptac_call *call)
{
    const ptac_gelu *p = call->params;

    return (p->is_tanh ? run_gelu_tanh_gradient : run_gelu_erf_gradient)(call);
}

static ptac_status run_hardswish_backward(const ptac_call *call)
{
    const float *x = call->inputs[PTAC_MISH_GRAD_X].data;

    for (int64_t i = 0; i < call->inputs[PTAC_MISH_GRAD_X].n_elements; i++)
        if (isnan(x[i]))
            return PTAC_UNSUITED;
    return run_hardswish_gradient(call);
}

#define SCALAR(id, level, run)                                                         \
    PTAC_ROW(id, "scalar", level, 0, ptac_activation_accepts, run)
SCALAR(GELU, PTAC_CLOSE, run_gelu)
SCALAR(GELU_BACKWARD, PTAC_CLOSE, run_gelu_gradient)
SCALAR(TANH, PTAC_CLOSE, run_tangent)
SCALAR(SIGMOID, PTAC_CLOSE, run_sigmoid)
SCALAR(SILU, PTAC_CLOSE, run_silu)
SCALAR(SILU_BACKWARD, PTAC_CLOSE, run_silu_gradient)
SCALAR(HARDSWISH, PTAC_CLOSE, run_hardswish)
SCALAR(HARDSWISH_BACKWARD, PTAC_CLOSE, run_hardswish_backward)
SCALAR(HARDSIGMOID, PTAC_CLOSE, run_hardsigmoid)
SCALAR(HARDSIGMOID_BACKWARD, PTAC_EXACT, run_hardsigmoid_gradient)
