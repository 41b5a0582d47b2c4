/*
 * attention.h - scaled dot product attention and its gradients: shapes and arguments.
 *
 *   y = softmax(q k^T * scale + mask) v
 *
 * q is [b, h, n_queries, d], k and v are [b, h, n_keys, d]. What computes is the host's
 * kernel; the only rows are of reduced precision, since on float32 torch's own kernel
 * has the speed of its products.
 */
#ifndef PTAC_OPS_ATTENTION_ATTENTION_H
#define PTAC_OPS_ATTENTION_ATTENTION_H

#include "core/kernel.h"

/* inputs[0] to [2] of a call are q, k and v. host: what its rows need besides. */
typedef struct ptac_attention {
    int64_t n_heads, n_queries, n_keys, d; /* heads of the whole batch */
    bool is_causal, has_mask;
    void *host;
} ptac_attention;

enum {
    PTAC_ATTENTION_FULL,
    PTAC_ATTENTION_CAUSAL,
    PTAC_ATTENTION_MASKED,
};

#endif
