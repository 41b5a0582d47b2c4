/*
 * elu_ref.c - ELU and its gradient by their definitions, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/activation/activation.h"

#include <math.h>

PTAC_SHAPES(ELU, ptac_classify_curve, PTAC_CURVE_KINDS)
PTAC_SHAPES(ELU_BACKWARD, ptac_classify_elements, "any")

static void elu(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_elu *p = call->params;
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++)
        y[i] = x[i] >= 0
                   ? x[i] * p->scale
                   : (float)(expm1((double)x[i] * p->input_scale) * p->scale_below);
}

static void elu_gradient(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_elu *p = call->params;
    const float *grad = call->inputs[PTAC_MISH_GRAD].data;
    const float *x = call->inputs[PTAC_MISH_GRAD_X].data;
    float *of_x = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const double inside = p->input_scale, below = p->scale_below;
        const double slope = p->is_result ? inside * (x[i] + below)
                                          : inside * below * exp(x[i] * inside);

        of_x[i] = (float)(grad[i] * (x[i] <= 0 ? slope : (double)p->scale));
    }
}

static ptac_status run_elu(const ptac_call *call)
{
    ptac_share_elements(call, elu);
    return PTAC_OK;
}

static ptac_status run_elu_gradient(const ptac_call *call)
{
    const float *x = call->inputs[PTAC_MISH_GRAD_X].data;

    for (int64_t i = 0; i < call->inputs[0].n_elements; i++)
        if (isnan(x[i]))
            return PTAC_UNSUITED;
    ptac_share_elements(call, elu_gradient);
    return PTAC_OK;
}

PTAC_ROW(ELU, "scalar", PTAC_CLOSE, 0, ptac_activation_accepts, run_elu)
PTAC_ROW(ELU_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_activation_accepts,
         run_elu_gradient)
