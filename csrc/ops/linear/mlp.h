/*
 * mlp.h - the operators mlp and mlp_backward: two Linear layers with an activation
 * between them, y = act(x w1^T + b1) w2^T + b2, and the gradients. Level close.
 *
 * Rows of CUDA take views, all of one dtype but for a mask, each with its rows'
 * elements side by side; what is not there has no data:
 *
 *   mlp           x [m, k], w1 [hidden, k], b1, w2 [n, hidden], b2
 *                   -> y [m, n], h [m, hidden], saved
 *   mlp_backward  grad [m, n], x, w1, w2, h, saved -> of x, of w1, b1, w2, b2
 *
 * h is what the activation gives. saved is what its gradient is computed from beside
 * h: z [m, hidden], of which rows begin ptac_mlp_saved_ld() elements apart; of ReLU a
 * mask, m rows of ptac_mlp_saved_ld() bits; of tanh and sigmoid nothing. It is written
 * where there is data for it. Without a mask ReLU goes back by h.
 *
 * Nothing is allocated: the call brings workspace of the bytes below, aligned to
 * PTAC_LT_WORKSPACE_ALIGNMENT.
 */
#ifndef PTAC_OPS_LINEAR_MLP_H
#define PTAC_OPS_LINEAR_MLP_H

#include "core/kernel.h"
#include "ops/linear/bias_act.h"
#include "ops/linear/products.h"

enum {
    PTAC_MLP_X = 0, /* inputs of mlp */
    PTAC_MLP_W1,
    PTAC_MLP_B1,
    PTAC_MLP_W2,
    PTAC_MLP_B2,
    PTAC_MLP_INPUTS,

    PTAC_MLP_Y = 0, /* and its outputs */
    PTAC_MLP_H,
    PTAC_MLP_SAVED,
    PTAC_MLP_OUTPUTS,

    PTAC_MLP_GRAD = 0, /* inputs of mlp_backward, of which the outputs are as mlp's */
    PTAC_MLP_GRAD_X,   /* inputs */
    PTAC_MLP_GRAD_W1,
    PTAC_MLP_GRAD_W2,
    PTAC_MLP_GRAD_H,
    PTAC_MLP_GRAD_SAVED,
    PTAC_MLP_GRAD_INPUTS,
};

/* params of both; leading dimensions of x and y are folded into m. */
typedef struct ptac_mlp_params {
    int64_t m, k, hidden, n;
    ptac_act activation;
    ptac_products products;
} ptac_mlp_params;

/* Elements between rows of z, or bits between those of a mask; 0: nothing is saved. */
int64_t ptac_mlp_saved_ld(ptac_act activation, int64_t hidden);

/* Backward fails with less than it takes to hold the gradient of z. */
size_t ptac_mlp_forward_workspace(const ptac_mlp_params *params);
size_t ptac_mlp_backward_workspace(const ptac_mlp_params *params, ptac_dtype dtype);

#endif
