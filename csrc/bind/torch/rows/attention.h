/*
 * attention.h - the tensors of a call of attention, which its rows reach through host.
 */
#ifndef PTAC_BIND_TORCH_ROWS_ATTENTION_H
#define PTAC_BIND_TORCH_ROWS_ATTENTION_H

#include "bind/torch/bridge.h"
#include "ops/attention/attention.h"

enum {
    PTAC_ATTENTION_QUERY,
    PTAC_ATTENTION_KEY,
    PTAC_ATTENTION_VALUE,
    PTAC_ATTENTION_OUT, /* of backward */
    PTAC_ATTENTION_GRAD,
    PTAC_ATTENTION_N_TENSORS,
    PTAC_ATTENTION_N_RESULTS = 3,
};

typedef struct ptac_attention_tensors {
    at_tensor tensors[PTAC_ATTENTION_N_TENSORS];
    at_tensor dense; /* grad_out in memory of its own, where that was needed */
    at_tensor sums;  /* logsumexp, of backward */
    at_tensor mask;  /* or NULL */
    double dropout, scale;
    bool is_causal, has_scale;
    bool is_in_bf16;                             /* backward: the forward call was */
    at_tensor results[PTAC_ATTENTION_N_RESULTS]; /* of a row */
} ptac_attention_tensors;

/* Torch's kernels, of which other tensors may take the place of a's. */
bool ptac_attention_is_there(void);
at_error ptac_attention_forward(const ptac_attention_tensors *a, const at_tensor *in,
                                at_tensor *out);
at_error ptac_attention_backward(const ptac_attention_tensors *a, const at_tensor *in,
                                 at_tensor *out);

#endif
