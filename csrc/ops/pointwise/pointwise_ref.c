/*
 * pointwise_ref.c - gated_act, add_act and their gradients by their definitions, in
 * double, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/linear/bias_act.h"
#include "ops/pointwise/pointwise.h"

PTAC_SHAPES(GATED_ACT, ptac_classify_elements, "any")
PTAC_SHAPES(GATED_ACT_BACKWARD, ptac_classify_elements, "any")
PTAC_SHAPES(ADD_ACT, ptac_classify_elements, "any")
PTAC_SHAPES(ADD_ACT_BACKWARD, ptac_classify_elements, "any")

static ptac_reason accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static double element(const ptac_view *view, int64_t i)
{
    const float *data = view->data;

    return data ? (double)data[i] : 0;
}

static ptac_act act_of(const ptac_call *call)
{
    return ((const ptac_pointwise *)call->params)->activation;
}

/* The gradient of g through the activation at z. */
static double back(double g, double z, ptac_act act)
{
    const bool by_z = ptac_act_saves_z(act) || act == PTAC_ACT_RELU;

    return ptac_act_gradient(g, by_z ? z : ptac_act_value(z, act), act);
}

static ptac_status gated_act(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    float *y = call->outputs[0].data;

    for (int64_t i = 0; i < in[0].n_elements; i++)
        y[i] = (float)(ptac_act_value(element(&in[PTAC_POINTWISE_A], i), act_of(call)) *
                       element(&in[PTAC_POINTWISE_B], i));
    return PTAC_OK;
}

static ptac_status gated_act_backward(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    float *of_a = call->outputs[0].data, *of_b = call->outputs[1].data;

    for (int64_t i = 0; i < in[0].n_elements; i++) {
        const double grad = element(&in[PTAC_POINTWISE_GRAD], i);
        const double a = element(&in[PTAC_POINTWISE_GRAD_A], i);
        const double b = element(&in[PTAC_POINTWISE_GRAD_B], i);

        of_a[i] = (float)back(grad * b, a, act_of(call));
        of_b[i] = (float)(grad * ptac_act_value(a, act_of(call)));
    }
    return PTAC_OK;
}

static ptac_status add_act(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    float *y = call->outputs[0].data;

    for (int64_t i = 0; i < in[0].n_elements; i++)
        y[i] = (float)ptac_act_value(element(&in[PTAC_POINTWISE_A], i) +
                                         element(&in[PTAC_POINTWISE_B], i),
                                     act_of(call));
    return PTAC_OK;
}

static ptac_status add_act_backward(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    float *of_x = call->outputs[0].data;

    for (int64_t i = 0; i < in[0].n_elements; i++)
        of_x[i] = (float)back(element(&in[PTAC_POINTWISE_GRAD], i),
                              element(&in[PTAC_POINTWISE_GRAD_A], i) +
                                  element(&in[PTAC_POINTWISE_GRAD_B], i),
                              act_of(call));
    return PTAC_OK;
}

#define DEFINITION(op, computes)                                                       \
    PTAC_ROW(op, "scalar", PTAC_CLOSE, 0, accepts, computes, .is_definition = true)
DEFINITION(GATED_ACT, gated_act)
DEFINITION(GATED_ACT_BACKWARD, gated_act_backward)
DEFINITION(ADD_ACT, add_act)
DEFINITION(ADD_ACT_BACKWARD, add_act_backward)
