/*
 * linear_act.h - the operators linear_act and linear_act_backward, which compute
 * y = act(x w^T + bias) and its gradients. Level close.
 *
 * Rows of the CPU take the tensors of their host (bind/torch/rows/linear_act.h). Rows
 * of CUDA take views, as follows, all of one dtype and each with its rows' elements
 * side by side; what is not there has no data:
 *
 *   linear_act           x [m, k], w [n, k], bias [n] -> y [m, n], saved
 *   linear_act_backward  grad [m, n], x, w, saved or y -> grad of x, of w, of bias
 *
 * saved is there where is_training and the activation is not none, tanh or sigmoid;
 * these two go back by y. Of ReLU it is a mask of bits, rows of
 * ptac_linear_act_saved_ld() bits; of others z = x w^T + bias, in rows of so many
 * elements. Backward, ReLU takes no y. At a NaN of z the library's own mask may stop
 * the gradient, which stock lets pass.
 *
 * Nothing is allocated: the call brings workspace of the bytes below, aligned to
 * PTAC_LT_WORKSPACE_ALIGNMENT.
 */
#ifndef PTAC_OPS_LINEAR_LINEAR_ACT_H
#define PTAC_OPS_LINEAR_LINEAR_ACT_H

#include "core/kernel.h"
#include "ops/linear/bias_act.h"

/* params of both; leading dimensions of x and y are folded into m. */
typedef struct ptac_linear_act {
    int64_t m, n, k;
    ptac_act activation;
    bool is_training; /* a gradient will be asked for */
    void *host;       /* of the CPU: the tensors, of either direction */
    /* Of CUDA: */
    bool allows_tf32; /* float32 may be multiplied with 10 bits of mantissa */
    int device;
    void *workspace;
    size_t workspace_bytes;
} ptac_linear_act;

/* Whether forward keeps something beside y for backward. */
static inline bool ptac_linear_act_saves(ptac_act act)
{
    return act == PTAC_ACT_RELU || ptac_act_saves_z(act);
}

/* Bits between rows of ReLU's mask; else elements between rows of z. */
int64_t ptac_linear_act_saved_ld(ptac_act act, int64_t n);

/*
 * The workspace that a call is fast with. Backward fails with less than it takes to
 * hold the gradient before the activation.
 */
size_t ptac_linear_act_workspace(const ptac_linear_act *params, ptac_dtype dtype);
size_t ptac_linear_act_backward_workspace(const ptac_linear_act *params,
                                          ptac_dtype dtype);

#endif
