/*
 * attention_softmax.h - what attention in bfloat16 does around two products of a
 * library: rounds queries and keys, makes their products weights of values, and what
 * these sum up to results.
 *
 * Scores come from the library rounded. So that they are small, queries and keys lose
 * what all of a head have in common, their means:
 *
 *   q k = (q - mq) (k - mk) + mq (k - mk) + q mk
 *
 * The first product is the library's, the second one is added to its results in
 * float32, and the third one is the same for all scores of a query and so changes no
 * weight. Weights are exp(score - largest of its row), rounded; what each row of them
 * sums up to divides the results, so that a row's rounded weights add up to one. A row
 * whose keys are all masked gives zeros.
 */
#ifndef PTAC_OPS_ATTENTION_ATTENTION_SOFTMAX_H
#define PTAC_OPS_ATTENTION_ATTENTION_SOFTMAX_H

#include "core/view.h"

/* Some heads of a batch, first_head and n_heads behind it; heads count through it. */
typedef struct ptac_attention_part {
    int64_t first_head, n_heads, heads_a_batch;
    int64_t n_queries, n_keys, d;
    float scale;
    bool is_causal;    /* query i sees keys up to i */
    const float *mask; /* added to scores, or NULL; by batch, head, query, key: */
    int64_t mask_strides[4];
    const uint16_t *queries; /* [n_heads, n_queries, d], without their means */
    const float *key_means;  /* [n_heads, d] */
    const float *key_shifts; /* [n_heads, n_keys]: mq (k - mk), scaled */
    const float *shifts;     /* [n_heads]: mq mk, scaled */
    uint16_t *scores;        /* [n_heads, n_queries, n_keys]: products, then weights */
    const uint16_t *sums_of_values; /* [n_heads, n_queries, d] */
    float *inverses;                /* [n_heads, n_queries]: of the sums of weights */
    float *log_sums;                /* of exp(score), by batch, head, query: */
    int64_t log_sums_strides[3];
    float *results; /* by batch, head, query; d next to each other: */
    int64_t results_strides[3];
} ptac_attention_part;

/*
 * [heads, n, d] in bfloat16 from [batch, heads, n, d] whose last stride is 1, less the
 * means of each head, [heads, d]. False where these are not finite.
 */
bool ptac_attention_centre(const ptac_view *in, float *means, uint16_t *centred);

/* Both means of all heads, to key_shifts and shifts. */
typedef struct ptac_attention_means {
    int64_t n_heads, n_keys, d;
    float scale;
    const uint16_t *keys; /* centred */
    const float *of_queries, *of_keys;
    float *key_shifts, *shifts;
} ptac_attention_means;

void ptac_attention_shift(const ptac_attention_means *means);

/* Whether n numbers in bfloat16 are all finite. */
bool ptac_attention_is_finite(const uint16_t *values, int64_t n);

/* scores, from products to weights; fills inverses and log_sums. */
void ptac_attention_weigh(const ptac_attention_part *part);

/* results, from sums_of_values and inverses. */
void ptac_attention_finish(const ptac_attention_part *part);

#endif
