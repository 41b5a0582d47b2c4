/*
 * sum_norm.h - LayerNorm behind a product: bias, residual and norm in one pass.
 * Level close.
 *
 *   sum = x + bias + residual      y = LayerNorm(sum)
 *
 * Not an operator of its own: layers of transformers call it behind their products.
 * Matrices are float32, [n_rows, width], row by row.
 */
#ifndef PTAC_OPS_NORM_LAYER_SUM_NORM_H
#define PTAC_OPS_NORM_LAYER_SUM_NORM_H

#include "core/host.h"
#include "ops/norm/norm.h"

/*
 * bias [width] and residual may be NULL. Without a sum x itself is normalized; without
 * y nothing is. sum and y may each be x, and the same. weight and bias_of_norm are
 * [width]. What is not finite is so in place and kind as by stock, but for rows whose
 * squares overflow in float, as in layer_norm.
 */
typedef struct ptac_sum_norm {
    const float *x, *bias, *residual;
    float *sum, *y;
    const float *weight, *bias_of_norm;
    ptac_norm is; /* n_rows, width, eps */
} ptac_sum_norm;

/* By the fastest that this CPU can run, in the host's threads. Cannot fail. */
void ptac_sum_norm_run(const ptac_sum_norm *job);

/* Rows [begin, end) of the job in context. */
void ptac_sum_norm_scalar(int64_t begin, int64_t end, void *context);
#if defined(__x86_64__)
void ptac_sum_norm_avx2(int64_t begin, int64_t end, void *context);
void ptac_sum_norm_avx512(int64_t begin, int64_t end, void *context);
#endif

#endif
