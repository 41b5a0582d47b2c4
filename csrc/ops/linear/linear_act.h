/*
 * linear_act.h - the operators linear_act and linear_act_backward, which compute
 * y = act(x w^T + bias) and its gradients. Level close.
 *
 * Rows of the CPU take the tensors of their host (bind/torch/rows/linear_act.h). Rows
 * of CUDA take views, as follows, all of one dtype and each with its rows' elements
 * side by side; what is not there has no data:
 *
 *   linear_act           x [m, k], w [n, k], bias [n] -> y [m, n], z [m, n]
 *   linear_act_backward  grad [m, n], x, w, saved -> grad of x, of w, of bias
 *
 * z = x w^T + bias is there where is_training and ptac_act_saves_z(); its rows begin
 * ptac_linear_act_ldz() elements apart. saved is z, or y of the other activations, in
 * rows at any distance.
 *
 * Nothing is allocated: the call brings workspace of the bytes below, aligned to
 * PTAC_LT_WORKSPACE_ALIGNMENT.
 */
#ifndef PTAC_OPS_LINEAR_LINEAR_ACT_H
#define PTAC_OPS_LINEAR_LINEAR_ACT_H

#include "core/kernel.h"
#include "ops/linear/bias_act.h"
#include "ops/linear/products.h"

/* params of both; leading dimensions of x and y are folded into m. */
typedef struct ptac_linear_act {
    int64_t m, n, k;
    ptac_act activation;
    bool is_training; /* a gradient will be asked for */
    void *host;       /* of the CPU: the tensors, of either direction */
    /* Of CUDA: */
    bool only_fused; /* refuse what takes a kernel behind the product: stock's does */
    ptac_products products;
} ptac_linear_act;

/* Elements between rows of z. */
int64_t ptac_linear_act_ldz(int64_t n);

/*
 * The workspace that a call is fast with. Backward fails with less than it takes to
 * hold the gradient before the activation.
 */
size_t ptac_linear_act_workspace(const ptac_linear_act *params, ptac_dtype dtype);
size_t ptac_linear_act_backward_workspace(const ptac_linear_act *params,
                                          ptac_dtype dtype);

#endif
