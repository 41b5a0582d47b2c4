/*
 * attention.h - torch's kernel of attention and its gradients: what it wants besides
 * what ops/attention/attention.h says, for the rows of reduced precision that it
 * computes for.
 */
#ifndef PTAC_BIND_TORCH_ROWS_ATTENTION_H
#define PTAC_BIND_TORCH_ROWS_ATTENTION_H

#include "bind/torch/dispatch.h"
#include "ops/attention/attention.h"

enum {
    PTAC_ATTENTION_N_TENSORS = PTAC_ATTENTION_GRAD + 1,
};

typedef struct ptac_attention_tensors {
    at_tensor tensors[PTAC_ATTENTION_N_TENSORS]; /* in the order of a call's inputs */
    at_tensor sums;                              /* of backward: logsumexp */
    at_tensor mask;                              /* or NULL */
    double dropout;
    bool is_causal;
    at_optional_real scale;
    at_tensor *results; /* where a row leaves them, also where it fails then */
} ptac_attention_tensors;

/* params of a call: those of any row, and what rows reach torch's tensors by. */
typedef struct ptac_attention_call {
    ptac_attention is;
    ptac_attention_tensors host;
} ptac_attention_call;

/* Tensors of a call that are queries, keys, values and what is alike. */
static inline int ptac_attention_n_tensors(const ptac_call *call)
{
    return ptac_attention_is_forward(call->op) ? PTAC_ATTENTION_N_FORWARD
                                               : PTAC_ATTENTION_N_TENSORS;
}

/*
 * Fill in what params say of a call with its inputs, behind whose host is known, or say
 * why stock must look at it: dropout, and anything that torch would refuse. A bit of
 * *dense is set for an input that rows need in memory without gaps, which is the
 * gradient at most.
 */
ptac_reason ptac_attention_read(const ptac_call *call, ptac_attention_call *params,
                                uint32_t *dense);

/* The strides that torch's kernel gives the result, and the logsumexp. */
void ptac_attention_result_strides(const ptac_view *query, int64_t result[4],
                                   int64_t log_sums[4]);

/* accepts() of rows that make copies of tensors as they lie, each with all heads. */
ptac_reason ptac_attention_copies_reason(const ptac_call *call);

/* A gradient runs in the precision of its forward call. */
const ptac_kernel *ptac_attention_admit_backward(ptac_call *call);

/*
 * Torch's gradients of a, in float32 whatever the forward call was in; throws torch's
 * errors.
 */
at_result ptac_attention_stock_backward(ptac_attention_tensors *a);

#endif
