/*
 * pointwise.h - chains of pointwise operators: an activation with the product or the
 * sum beside it, and their gradients. Level close.
 *
 *   gated_act           a, b -> act(a) * b
 *   gated_act_backward  grad, a, b -> grad * b * act'(a), grad * act(a)
 *   add_act             x, residual -> act(x + residual)
 *   add_act_backward    grad, x, residual -> grad * act'(x + residual)
 *
 * gated_act with SiLU is SwiGLU, with GELU it is GEGLU (Shazeer, "GLU Variants Improve
 * Transformer", 2020). All tensors of a call are contiguous, of one dtype and of equal
 * sizes. Between its loads and stores nothing is rounded to 16 bits. The gradient of
 * add_act is that of x and of residual; its residual may be without data, so that ReLU
 * can go back by y in place of x.
 */
#ifndef PTAC_OPS_POINTWISE_POINTWISE_H
#define PTAC_OPS_POINTWISE_POINTWISE_H

#include "core/kernel.h"
#include "ops/linear/act.h"

/* params of all four: not PTAC_ACT_NONE. */
typedef struct ptac_pointwise {
    ptac_act activation;
} ptac_pointwise;

/* Inputs of forward; those of gradients have grad first. */
enum {
    PTAC_POINTWISE_A,
    PTAC_POINTWISE_B,

    PTAC_POINTWISE_GRAD = 0,
    PTAC_POINTWISE_GRAD_A,
    PTAC_POINTWISE_GRAD_B,
};

#endif
