/*
 * encoder.h - the operators multi_head_attention and encoder_layer on handles: torch's
 * self-attention with its projections, and its encoder layer around it, in inference.
 * Level close.
 *
 *   multi_head_attention   a(x) = concat(softmax(q k^T / sqrt(d) + mask) v) w_out^T
 *                          + b_out, with q, k and v of each head from x w_in^T + b_in
 *   encoder_layer          h = LN1(x + a(x)), y = LN2(h + f(h)), or, norm_first,
 *                          h = x + a(LN1(x)), y = h + f(LN2(h)),
 *                          where f(h) = act(h w1^T + b1) w2^T + b2
 *
 * (Vaswani and others, "Attention Is All You Need", 2017.) Products are linear_act's,
 * by the row that tables name there, heads attend by attention's, and what follows an
 * output product is one pass (sum_norm.h). A query that sees no key is stock's.
 *
 * inputs[0] of a call is x, [batch, length, width], and outputs[0] the result.
 */
#ifndef PTAC_BIND_TORCH_ROWS_ENCODER_ENCODER_H
#define PTAC_BIND_TORCH_ROWS_ENCODER_ENCODER_H

#include "bind/torch/bridge.h"
#include "ops/linear/act.h"

/* What a mask has an element for, as torch counts its kinds. */
typedef enum ptac_mask_kind {
    PTAC_MASK_PAIRS = 0, /* [length, length]: query and key */
    PTAC_MASK_KEYS,      /* [batch, length]: key */
    PTAC_MASK_ALL,       /* [batch, heads, length, length] */
    PTAC_NO_MASK,
} ptac_mask_kind;

/* params of multi_head_attention. Handles are borrowed, weights contiguous float32. */
typedef struct ptac_self_attention {
    int64_t batch, length, width, heads;
    at_tensor x;                        /* lies as it lies */
    at_tensor w_in, b_in, w_out, b_out; /* [3 width, width], [3 width] and so on */
    ptac_mask_kind mask_kind;
    bool mask_is_float; /* where it is not 0 nothing is seen; else bool, where true */
    const ptac_view *mask; /* lies as it lies */
} ptac_self_attention;

/* params of encoder_layer. */
typedef struct ptac_encoder_layer {
    ptac_self_attention attention;
    int64_t hidden;
    at_tensor w1, b1, w2, b2; /* [hidden, width], [hidden], [width, hidden], [width] */
    at_tensor norm1[2], norm2[2]; /* weight and bias, [width] */
    double eps;
    ptac_act activation;
    bool norm_first;
} ptac_encoder_layer;

/* x w^T + bias, activated, by linear_act's row or else BLAS; bias may be NULL. */
ptac_status ptac_encoder_product(at_tensor x, at_tensor w, at_tensor bias, ptac_act act,
                                 at_tensor *y);

/* a(x) without b_out, [batch * length, width], of a contiguous x. */
ptac_status ptac_self_attend(const ptac_self_attention *p, at_tensor x, at_tensor *y);

/* accepts() of both: whether rows of attention and products may serve the call. */
ptac_reason ptac_self_attention_reason(const ptac_self_attention *p);

#endif
