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
 *
 * Tensors but the weight have equal sizes, are dense, and lie alike.
 */
#ifndef PTAC_OPS_ACTIVATION_ACTIVATION_H
#define PTAC_OPS_ACTIVATION_ACTIVATION_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_PRELU_GRAD,
    PTAC_PRELU_X,
    PTAC_PRELU_WEIGHT,

    PTAC_MISH_GRAD = 0,
    PTAC_MISH_GRAD_X,
};

/* Element i, in memory, has weight i / inner % channels; of 1 all have the same. */
typedef struct ptac_prelu {
    int64_t inner, channels;
} ptac_prelu;

/* What every row accepts. */
ptac_reason ptac_activation_accepts(const ptac_call *call);

/* Threads share the elements of a call. */
static inline void ptac_share_elements(const ptac_call *call, ptac_range_fn body)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, 16384, body, (void *)call);
}

#endif
