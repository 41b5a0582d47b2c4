/*
 * rows.h - constants of what happens to rows between int8 products.
 *
 * GELU is z * Phi(z) with Phi(-a) = sum(terms[i] k^(i + 1)) exp(-a^2 / 2), k = 1 / (1 +
 * p a), for a >= 0: half of erfc(a / sqrt(2)) by Abramowitz and Stegun, "Handbook of
 * Mathematical Functions", 7.1.26. Phi is wrong by 1e-7 at most, which is far below a
 * step of the bytes that it becomes. LayerNorm adds up 32 sums, of every 32nd number,
 * and then halves to halves. Both so that each instruction set gives the same bits.
 */
#ifndef PTAC_OPS_INT8_SUBLAYER_ROWS_H
#define PTAC_OPS_INT8_SUBLAYER_ROWS_H

enum {
    PTAC_NORM_SUMS = 32,
};

#define PTAC_GELU_P 0.231641888f /* 0.3275911 / sqrt(2) */

/* Beyond it Phi(-a) is 0: what is left, 2e-33, would come by way of slow denormals. */
#define PTAC_GELU_MOST 12.0f

static const float ptac_gelu_terms[] = {0.127414796f, -0.142248368f, 0.7107068705f,
                                        -0.7265760135f, 0.5307027145f};

/* (exp(r) - 1 - r) / r^2, as in ops/math/math_tpl.h. */
static const float ptac_gelu_exp_terms[] = {0.49999994f, 0.166665211f, 0.0416682549f,
                                            0.00836866163f, 0.00138214533f};

#endif
