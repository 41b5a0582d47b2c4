/*
 * attention.h - scaled dot product attention, and its gradients. Level close.
 *
 *   y = softmax(scale * q k^T + mask) v
 *
 * or, of attention_dropout, (softmax(...) * kept / keep) v, where kept has a one for
 * each weight that is kept and a zero for each that is dropped.
 *
 * q is [batch, heads, n_queries, d]; k and v are [batch, key_heads, n_keys, d], where
 * as many neighbouring heads of q share one of k as heads / key_heads says. All are of
 * float32 and lie as they lie, but for the numbers of a row, which are neighbours. A
 * query of which all keys are masked gives zeros. Forward also gives log_sums,
 * [batch, heads, n_queries]: the logarithm of what the weights of a query sum up to
 * before they are divided by it, 0 where all are masked.
 *
 * Scores never lie in memory as a whole: a block of queries goes through the keys,
 * block by block, and what it has summed up shrinks when a larger score comes (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao and others,
 * "FlashAttention", 2022). Backward computes the weights again from log_sums.
 *
 * Which results are not finite depends on which masked keys stock's blocks take in, so
 * that rows give such a call back: PTAC_UNSUITED.
 */
#ifndef PTAC_OPS_ATTENTION_ATTENTION_H
#define PTAC_OPS_ATTENTION_ATTENTION_H

#include "core/kernel.h"

/*
 * Inputs of a call. Behind them come, of attention_dropout, kept, contiguous, and the
 * mask, which may be absent.
 */
enum {
    PTAC_ATTENTION_QUERY,
    PTAC_ATTENTION_KEY,
    PTAC_ATTENTION_VALUE,
    PTAC_ATTENTION_N_FORWARD,
    PTAC_ATTENTION_OUT = PTAC_ATTENTION_N_FORWARD, /* of backward */
    PTAC_ATTENTION_GRAD,                           /* of y */
    PTAC_ATTENTION_LOG_SUMS,
    PTAC_ATTENTION_N_BACKWARD,
};

static inline bool ptac_attention_drops(ptac_op op)
{
    return op == PTAC_OP_ATTENTION_DROPOUT || op == PTAC_OP_ATTENTION_DROPOUT_BACKWARD;
}

static inline bool ptac_attention_is_forward(ptac_op op)
{
    return op == PTAC_OP_ATTENTION || op == PTAC_OP_ATTENTION_DROPOUT;
}

/* Which inputs they are. */
static inline int ptac_attention_kept_input(ptac_op op)
{
    return ptac_attention_is_forward(op) ? PTAC_ATTENTION_N_FORWARD
                                         : PTAC_ATTENTION_N_BACKWARD;
}

static inline int ptac_attention_mask_input(ptac_op op)
{
    return ptac_attention_kept_input(op) + ptac_attention_drops(op);
}

/* Outputs of forward; those of backward are the gradients of q, k and v. */
enum {
    PTAC_ATTENTION_RESULT,
    PTAC_ATTENTION_RESULT_LOG_SUMS,
};

/* params of a call. */
typedef struct ptac_attention {
    int64_t batch, heads, key_heads, n_queries, n_keys, d;
    float scale;
    bool is_causal; /* query i sees keys up to i */
    float keep;     /* of attention_dropout: the share of weights that are kept */
} ptac_attention;

/* A matrix for each head: strides by batch, head and row. */
typedef struct ptac_attention_heads {
    float *data;
    int64_t batch, head, row;
} ptac_attention_heads;

/* [batch, heads, n_queries, n_keys], of which a stride may be 0; data NULL: no mask. */
typedef struct ptac_attention_mask {
    const float *data;
    int64_t batch, head, query, key;
} ptac_attention_mask;

/* Everything about a call, as kernels want it. */
typedef struct ptac_attention_job {
    ptac_attention is;
    ptac_attention_heads q, k, v, y, grad, grad_q, grad_k, grad_v;
    ptac_attention_heads log_sums; /* rows of one number */
    ptac_attention_mask mask, kept;
    ptac_status status; /* other than PTAC_OK: threads leave why they failed */
} ptac_attention_job;

ptac_attention_job ptac_attention_forward_job(const ptac_call *call);
ptac_attention_job ptac_attention_backward_job(const ptac_call *call);

/* The matrix of a head, by its number through the batch. */
static inline float *ptac_attention_at(const ptac_attention_heads *of, int64_t heads,
                                       int64_t head)
{
    return of->data + head / heads * of->batch + head % heads * of->head;
}

/* Head of k that this head of q reads, both by their numbers through the batch. */
static inline int64_t ptac_attention_key_head(const ptac_attention *is, int64_t head)
{
    const int64_t shared = is->heads / is->key_heads;

    return head / is->heads * is->key_heads + head % is->heads / shared;
}

/* The mask of a head; NULL where there is none. */
static inline const float *ptac_attention_mask_at(const ptac_attention_mask *mask,
                                                  int64_t heads, int64_t head)
{
    if (!mask->data)
        return NULL;
    return mask->data + head / heads * mask->batch + head % heads * mask->head;
}

/* How many keys queries up to the last of them may see. */
static inline int64_t ptac_attention_n_seen(const ptac_attention *is, int64_t last)
{
    return is->is_causal ? ptac_least(last + 1, is->n_keys) : is->n_keys;
}

static inline void ptac_attention_fail(ptac_attention_job *job, ptac_status why)
{
    __atomic_store_n(&job->status, why, __ATOMIC_RELAXED);
}

#endif
