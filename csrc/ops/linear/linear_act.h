/*
 * linear_act.h - y = act(x w^T + bias) and its gradients: shapes and arguments.
 *
 * The product is the host's (a GEMM library of torch's); bias and activation are ours,
 * see bias_act.h. Level close: stock adds the bias inside its product, and the
 * libraries sum in different orders.
 */
#ifndef PTAC_OPS_LINEAR_LINEAR_ACT_H
#define PTAC_OPS_LINEAR_LINEAR_ACT_H

#include "core/kernel.h"
#include "ops/linear/bias_act.h"

/*
 * x is [m, k], w is [n, k], y is [m, n]; leading dimensions of x and y are folded into
 * m. inputs[0] of the call is x. host is what the rows of the host need to reach the
 * tensors themselves.
 */
typedef struct ptac_linear_act {
    int64_t m, n, k;
    ptac_act activation;
    bool is_training; /* a gradient will be asked for */
    void *host;
} ptac_linear_act;

/* Shape kinds: alone or followed by an activation, for inference or with gradients. */
enum {
    PTAC_LINEAR_INFER,
    PTAC_LINEAR_INFER_ACT,
    PTAC_LINEAR_TRAIN,
    PTAC_LINEAR_TRAIN_ACT,
};

#endif
