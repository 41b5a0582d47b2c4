/*
 * activation.h - activations that torch's operators compute alone, and their gradients.
 *
 *   prelu_backward   grad, x, weight -> grad and 0 where x > 0,
 *                    weight * grad and x * grad elsewhere.
 *                    Level exact. The second output is not summed up yet: torch does
 *                    that where the weight is a channel's.
 *   mish             x -> x * tanh(log(1 + exp(x)))
 *   mish_backward    grad, x -> grad times its derivative
 *                    Level close, NaN at infinities where ATen's formulas give it (D.
 *                    Misra, "Mish: A Self Regularized Non-Monotonic Activation
 *                    Function", 2019).
 *   gelu, tanh, sigmoid, silu, and grad, x -> the gradients of gelu and silu
 *                    As mish. ops/linear/act.h has the formulas.
 *   elu              x -> scale * x from 0 on, else scale_below * (exp(input_scale * x)
 *                    - 1), level close (D. Clevert and others, "Fast and Accurate Deep
 *                    Network Learning by Exponential Linear Units", 2015); SELU and
 *                    CELU are that with other scales
 *   elu_backward     grad, x -> grad times its derivative, or of the result in x's
 *                    place. Level close. A NaN in x gives the call back: at the end of
 *                    a thread's piece ATen hands grad on there.
 *   hardsigmoid      x -> min(max(x + 3, 0), 6) / 6, level close
 *   hardswish        x -> x * that, level close
 *   hardsigmoid_backward   grad, x -> grad / 6 where |x| < 3, else 0, level exact
 *   hardswish_backward     grad, x -> 0 below -3, grad from 3 on, grad * (x / 3 + 1/2)
 *                          between; level close. A NaN in x gives the call back: at the
 *                          end of a thread's piece ATen hands grad on there.
 *
 * Tensors but the weight have equal sizes, are dense, and lie alike. An output may lie
 * on the input of an operator that has one.
 */
#ifndef PTAC_OPS_ACTIVATION_ACTIVATION_H
#define PTAC_OPS_ACTIVATION_ACTIVATION_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_PRELU_GRAD,
    PTAC_PRELU_X,
    PTAC_PRELU_WEIGHT,

    PTAC_MISH_GRAD = 0, /* and of all other gradients of x alone */
    PTAC_MISH_GRAD_X,
};

typedef struct ptac_gelu {
    bool is_tanh;   /* by tanh, not by erf */
    bool is_onednn; /* whose GELU by erf is NaN at infinity: contiguous tensors' */
} ptac_gelu;

typedef struct ptac_elu {
    float scale, scale_below, input_scale;
    bool is_result; /* a gradient is of that */
} ptac_elu;

/* As ATen's alpha, scale and input_scale say. */
static inline ptac_elu ptac_elu_of(double alpha, double scale, double input_scale)
{
    return (ptac_elu){
        .scale = (float)scale,
        .scale_below = (float)alpha * (float)scale,
        .input_scale = (float)input_scale,
    };
}

/* Element i, in memory, has weight i / inner % channels; of 1 all have the same. */
typedef struct ptac_prelu {
    int64_t inner, channels;
} ptac_prelu;

/* classify() of those that may work in place, which is a kind of its own. */
#define PTAC_CURVE_KINDS "any", "in_place"
ptac_reason ptac_classify_curve(const ptac_call *call, ptac_shape *shape);

/* What every row accepts. */
ptac_reason ptac_activation_accepts(const ptac_call *call);

/* Threads share the elements of a call. */
static inline void ptac_share_elements(const ptac_call *call, ptac_range_fn body)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, 16384, body, (void *)call);
}

#endif
