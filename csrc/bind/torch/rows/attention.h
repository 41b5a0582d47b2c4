/*
 * attention.h - scaled dot product attention and its gradients,
 *
 *   y = softmax(q k^T * scale + mask) v
 *
 * q is [b, h, n_queries, d], k and v are [b, h, n_keys, d]. What computes is torch's
 * kernel; the only rows are of reduced precision, since on float32 that kernel has the
 * speed of its products. Rows reach the tensors of a call through host.
 */
#ifndef PTAC_BIND_TORCH_ROWS_ATTENTION_H
#define PTAC_BIND_TORCH_ROWS_ATTENTION_H

#include "bind/torch/dispatch.h"

enum {
    PTAC_ATTENTION_QUERY,
    PTAC_ATTENTION_KEY,
    PTAC_ATTENTION_VALUE,
    PTAC_ATTENTION_OUT, /* of backward */
    PTAC_ATTENTION_GRAD,
    PTAC_ATTENTION_N_TENSORS,
};

typedef struct ptac_attention_tensors {
    at_tensor tensors[PTAC_ATTENTION_N_TENSORS];
    at_tensor sums; /* of backward: logsumexp */
    at_tensor mask; /* or NULL */
    double dropout;
    bool is_causal;
    at_optional_real scale;
    at_tensor *results; /* where a row leaves them, also where it fails then */
} ptac_attention_tensors;

/* params of a call, whose inputs are q, k and v of the whole batch. */
typedef struct ptac_attention {
    int64_t n_heads, n_queries, n_keys, d;
    ptac_attention_tensors host;
} ptac_attention;

/*
 * Fill in the sizes of a call with its inputs, or say why stock must look at it:
 * dropout apart, anything that torch would refuse. A bit of *dense is set for an input
 * that rows need in memory without gaps, which is the gradient at most.
 */
ptac_reason ptac_attention_read(const ptac_call *call, ptac_attention *params,
                                uint32_t *dense);

/* A gradient runs in the precision of its forward call. */
const ptac_kernel *ptac_attention_admit_backward(ptac_call *call);

/*
 * Torch's gradients of a, in float32 whatever the forward call was in; throws torch's
 * errors.
 */
at_result ptac_attention_stock_backward(ptac_attention_tensors *a);

#endif
