/*
 * losses.h - losses of each element, their mean or their sum, and their gradients.
 *
 *   mse_loss                           (x - t)^2
 *   smooth_l1_loss                     (x - t)^2 / (2 beta) where |x - t| < beta, else
 *                                      |x - t| - beta / 2
 *   binary_cross_entropy               (t - 1) log(1 - x) - t log(x), where neither
 *                                      logarithm is below -100. An x or t outside of
 *                                      [0, 1] gives the call back: stock raises errors.
 *   binary_cross_entropy_with_logits   (1 - t) x - log(sigmoid(x))
 *
 * for x and a target t of equal sizes, dense, that lie alike. Gradients, of x alone,
 * are multiplied by grad, of one element or as x, and divided by the number of elements
 * where the loss was their mean:
 *
 *   mse_loss_backward                  2 (x - t), level exact
 *   smooth_l1_loss_backward            (x - t) / beta, at most 1 and at least -1
 *   binary_cross_entropy_backward      (x - t) / max((1 - x) x, 1e-12)
 *
 * Others are of level close. Sums are taken in double, in the same blocks whatever the
 * number of threads. Source: ATen/native/Loss.cpp and its kernels.
 */
#ifndef PTAC_OPS_LOSS_LOSSES_H
#define PTAC_OPS_LOSS_LOSSES_H

#include "core/host.h"
#include "core/kernel.h"

typedef enum ptac_reduction {
    PTAC_LOSS_EACH,
    PTAC_LOSS_MEAN,
    PTAC_LOSS_SUM,
} ptac_reduction;

typedef struct ptac_loss {
    ptac_reduction reduction;
    double beta; /* of smooth_l1_loss, from PTAC_LEAST_BETA to PTAC_MOST_BETA */
} ptac_loss;

#define PTAC_LEAST_BETA 1e-6
#define PTAC_MOST_BETA  1e6

enum {
    PTAC_LOSS_X,
    PTAC_LOSS_TARGET,

    PTAC_LOSS_GRAD = 0,
    PTAC_LOSS_GRAD_X,
    PTAC_LOSS_GRAD_TARGET,

    PTAC_LOSS_BLOCK = 8192, /* elements that are summed up by one thread */
    PTAC_LOSS_SHARE = 32768,
};

/* What every row accepts. */
ptac_reason ptac_loss_accepts(const ptac_call *call);

/* What the threads of a call share. */
typedef struct ptac_loss_work {
    const ptac_call *call;
    double *sums; /* of blocks */
    bool is_outside;
} ptac_loss_work;

/*
 * Run each on pieces of the elements, or blocks on pieces of the blocks and add their
 * sums up. Both get a ptac_loss_work.
 */
ptac_status ptac_loss_run(const ptac_call *call, ptac_range_fn each,
                          ptac_range_fn blocks);

/* The elements of a block. */
static inline int64_t ptac_loss_block_end(const ptac_call *call, int64_t block)
{
    return ptac_least(call->inputs[PTAC_LOSS_X].n_elements,
                      (block + 1) * PTAC_LOSS_BLOCK);
}

/* Run gradients, which gets the call, on pieces of the elements. */
static inline ptac_status ptac_loss_gradients(const ptac_call *call,
                                              ptac_range_fn gradients)
{
    ptac_parallel_for(0, call->inputs[PTAC_LOSS_GRAD_X].n_elements, PTAC_LOSS_SHARE,
                      gradients, (void *)call);
    return PTAC_OK;
}

/* Gradient at element i. */
static inline float ptac_loss_grad(const ptac_call *call, int64_t i)
{
    const ptac_view *grad = &call->inputs[PTAC_LOSS_GRAD];

    return ((const float *)grad->data)[grad->n_elements == 1 ? 0 : i];
}

/* 1 over the number of elements of a mean, or 1. */
static inline double ptac_loss_norm(const ptac_call *call)
{
    const ptac_loss *p = call->params;

    return p->reduction == PTAC_LOSS_MEAN
               ? 1. / (double)call->inputs[PTAC_LOSS_GRAD_X].n_elements
               : 1;
}

#endif
