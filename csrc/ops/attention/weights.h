/*
 * weights.h - the middle of attention in bfloat16: from products of queries and keys to
 * weights of values, and from what these sum up to, to results.
 *
 * For a row that has a library multiply. Weights are exp(score - largest of its row),
 * rounded; what each row of them sums up to divides the results, so that a row's
 * rounded weights add up to one. A row whose keys are all masked gives zeros.
 */
#ifndef PTAC_OPS_ATTENTION_WEIGHTS_H
#define PTAC_OPS_ATTENTION_WEIGHTS_H

#include "core/base.h"

/* Some heads of a batch, first_head and n_heads behind it; heads count through it. */
typedef struct ptac_attention_part {
    int64_t first_head, n_heads, heads_a_batch;
    int64_t n_queries, n_keys, d;
    float scale;
    bool is_causal;    /* query i sees keys up to i */
    const float *mask; /* added to scores, or NULL; by batch, head, query, key: */
    int64_t mask_strides[4];
    uint16_t *scores; /* [n_heads, n_queries, n_keys]: products, then weights */
    const uint16_t *sums_of_values; /* [n_heads, n_queries, d] */
    float *inverses;                /* [n_heads, n_queries]: of the sums of weights */
    float *log_sums;                /* of exp(score), by batch, head, query: */
    int64_t log_sums_strides[3];
    float *results; /* by batch, head, query; d next to each other: */
    int64_t results_strides[3];
} ptac_attention_part;

/* scores, from products to weights; fills inverses and log_sums. */
void ptac_attention_weigh(const ptac_attention_part *part);

/* results, from sums_of_values and inverses. */
void ptac_attention_finish(const ptac_attention_part *part);

#endif
