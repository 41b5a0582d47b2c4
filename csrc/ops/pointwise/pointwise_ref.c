/*
 * pointwise_ref.c - gated_act, add_act, bias_act and their gradients by their
 * definitions, in double, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/linear/bias_act.h"
#include "ops/pointwise/pointwise.h"

/* A call with a node in autograd's graph is worth it from another size on. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = ((const ptac_pointwise *)call->params)->is_trained;
    return why;
}

PTAC_SHAPES(GATED_ACT, classify, "alone", "gradient")
PTAC_SHAPES(ADD_ACT, classify, "alone", "gradient")
PTAC_SHAPES(BIAS_ACT, classify, "alone", "gradient")

/* Forward has decided: what it has saved suits our gradients. */
#define OF_FORWARD(op) PTAC_SHAPES_OF(op, ptac_classify_elements, 0, true, "any")
OF_FORWARD(GATED_ACT_BACKWARD)
OF_FORWARD(ADD_ACT_BACKWARD)
OF_FORWARD(BIAS_ACT_BACKWARD)

static ptac_act act_of(const ptac_call *call)
{
    return ((const ptac_pointwise *)call->params)->activation;
}

ptac_reason ptac_pointwise_accepts(const ptac_call *call)
{
    if (act_of(call) <= PTAC_ACT_NONE || act_of(call) >= PTAC_N_ACTS)
        return PTAC_ARGUMENT;
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static double element(const ptac_view *view, int64_t i)
{
    const float *data = view->data;

    return data ? (double)data[i] : 0;
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

static ptac_status bias_act(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    const int64_t width = in[PTAC_POINTWISE_B].n_elements;
    float *y = call->outputs[0].data;

    for (int64_t i = 0; i < in[0].n_elements; i++)
        y[i] = (float)ptac_act_value(element(&in[PTAC_POINTWISE_A], i) +
                                         element(&in[PTAC_POINTWISE_B], i % width),
                                     act_of(call));
    return PTAC_OK;
}

static ptac_status bias_act_backward(const ptac_call *call)
{
    const ptac_view *in = call->inputs;
    const int64_t width = in[PTAC_POINTWISE_GRAD_B].n_elements;
    float *of_x = call->outputs[0].data, *of_bias = call->outputs[1].data;

    for (int64_t j = 0; j < width; j++) {
        double sum = 0;

        for (int64_t i = j; i < in[0].n_elements; i += width) {
            const double z = element(&in[PTAC_POINTWISE_GRAD_A], i) +
                             element(&in[PTAC_POINTWISE_GRAD_B], j);
            const double slope =
                back(element(&in[PTAC_POINTWISE_GRAD], i), z, act_of(call));

            of_x[i] = (float)slope;
            sum += slope;
        }
        if (of_bias)
            of_bias[j] = (float)sum;
    }
    return PTAC_OK;
}

#define SCALAR(op, computes)                                                           \
    PTAC_ROW(op, "scalar", PTAC_CLOSE, 0, ptac_pointwise_accepts, computes)
SCALAR(GATED_ACT, gated_act)
SCALAR(GATED_ACT_BACKWARD, gated_act_backward)
SCALAR(ADD_ACT, add_act)
SCALAR(ADD_ACT_BACKWARD, add_act_backward)
SCALAR(BIAS_ACT, bias_act)
SCALAR(BIAS_ACT_BACKWARD, bias_act_backward)
