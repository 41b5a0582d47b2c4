/*
 * pointwise.h - chains of pointwise operators: an activation with the product or the
 * sum beside it, and their gradients. Level close.
 *
 *   gated_act           a, b -> act(a) * b
 *   gated_act_backward  grad, a, b -> grad * b * act'(a), grad * act(a)
 *   add_act             x, residual -> act(x + residual)
 *   add_act_backward    grad, x, residual -> grad * act'(x + residual)
 *   bias_act            x, bias -> act(x + bias)
 *   bias_act_backward   grad, x, bias -> grad * act'(x + bias), and the sums of its
 *                       columns, which may be without data
 *
 * gated_act with SiLU is SwiGLU, with GELU it is GEGLU (Shazeer, "GLU Variants Improve
 * Transformer", 2020). All tensors of a call are contiguous, of one dtype and of equal
 * sizes, but for the bias, which has those of a row; bias_act is the CPU's alone.
 * Between its loads and stores nothing is rounded to 16 bits. The gradient of add_act
 * is that of x and of residual; its residual may be without data, so that ReLU can go
 * back by y in place of x.
 */
#ifndef PTAC_OPS_POINTWISE_POINTWISE_H
#define PTAC_OPS_POINTWISE_POINTWISE_H

#include "core/kernel.h"
#include "ops/linear/act.h"

/* params of all: not PTAC_ACT_NONE. */
typedef struct ptac_pointwise {
    ptac_act activation;
    bool is_trained; /* a gradient follows: a kind of its own */
} ptac_pointwise;

/* Inputs of forward; those of gradients have grad first. */
enum {
    PTAC_POINTWISE_A,
    PTAC_POINTWISE_B,

    PTAC_POINTWISE_GRAD = 0,
    PTAC_POINTWISE_GRAD_A,
    PTAC_POINTWISE_GRAD_B,
};

/* What every row of the CPU accepts. */
ptac_reason ptac_pointwise_accepts(const ptac_call *call);

#endif
