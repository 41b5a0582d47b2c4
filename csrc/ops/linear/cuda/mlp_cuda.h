/*
 * mlp_cuda.h - two Linear layers with an activation between them, on CUDA:
 * y = act(x w1^T + b1) w2^T + b2, and its gradients.
 *
 * Two products forward and four backward. Where cuBLASLt has the epilogues (ReLU, and
 * GELU by tanh) there is nothing else, but for the kernel that makes ReLU's mask: the
 * product that gives the gradient of the hidden layer also takes it through the
 * activation and sums it for b1, and those of the weights sum for b2. Else a kernel of
 * bias_act.cu follows a product. Level close.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_MLP_CUDA_H
#define PTAC_OPS_LINEAR_CUDA_MLP_CUDA_H

#include "ops/linear/cuda/lt_step.h"

/*
 * x [m, k], w1 [hidden, k], w2 [n, hidden]; b1 and b2 may be NULL. Forward writes h [m,
 * hidden], y [m, n] and, unless it has no data, saved, of which a row has
 * ptac_lt_saved_ld() bits or elements. Whoever wants gradients keeps x, h and
 * saved; for tanh and sigmoid saved has no data, and h is what backward takes, as it
 * does for ReLU without a mask.
 */
typedef struct ptac_mlp {
    int64_t m, k, hidden, n;
    ptac_act act;
    ptac_lt_matrix x, w1, w2;
    void *b1, *b2;
    ptac_lt_matrix h, saved, y;
} ptac_mlp;

/*
 * gy [m, n] gives gz [m, hidden], the gradient before the activation, in memory that
 * the call brings; gx [m, k]; gw1, gw2, gb1, gb2 in the sizes of what they belong to.
 * Without data: not wanted. Whoever wants gx, gw1 or gb1 brings gz.
 */
typedef struct ptac_mlp_grads {
    ptac_lt_matrix gy, gz, gx, gw1, gw2;
    void *gb1, *gb2;
} ptac_mlp_grads;

/*
 * PTAC_UNSUPPORTED, before the first write, where the library refuses a product or
 * there is too little workspace: ptac_mlp_workspace() is enough.
 */
ptac_status ptac_mlp_forward(const ptac_lt_place *place, const ptac_mlp *mlp);
ptac_status ptac_mlp_backward(const ptac_lt_place *place, const ptac_mlp *mlp,
                              const ptac_mlp_grads *grads);

size_t ptac_mlp_workspace(const ptac_mlp *mlp);

#endif
