/*
 * descent.h - the sum of gradient times direction over many parameters: how much a step
 * of rate 1 lowers the loss, to first order.
 *
 * The direction is the one that the coming step will take, computed from the gradient
 * and the optimizer's state before the step: nothing is written. Sums are taken in
 * double and block by block, so that they do not depend on the number of threads; rows
 * of different instruction sets may differ in the last bits of single terms. Vectors of
 * float32 take directions in float32, as the optimizer does: a gradient whose square
 * leaves its range counts as a step of zero, or without bounds.
 */
#ifndef PTAC_OPS_LEARNING_RATE_DESCENT_H
#define PTAC_OPS_LEARNING_RATE_DESCENT_H

#include "core/base.h"

#include <stdbool.h>

/*
 * One parameter of n elements, all arrays in the same memory order. The direction is
 *
 *     (average * keep_average + g * add_average)
 *     / (sqrt(square * keep_square + g * g * add_square) + eps)
 *
 * with g = grad * scale; without a division where is_scaled is false. average and
 * square may be NULL, for zeros.
 */
typedef struct ptac_descent {
    int64_t n;
    bool is_double, is_scaled;
    const void *grad, *average, *square;
    double scale, keep_average, add_average, keep_square, add_square, eps;
} ptac_descent;

/*
 * Sum over all items. partial is room for ptac_descent_blocks() numbers. Uses the
 * host's threads where the work is worth it; cannot fail.
 */
int64_t ptac_descent_blocks(const ptac_descent *items, int64_t n_items);
double ptac_descent_sum(const ptac_descent *items, int64_t n_items, double *partial);

#endif
