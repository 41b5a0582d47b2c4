/*
 * log_softmax.h - log-softmax over the last dimension of dense tensors. Level close.
 *
 * Forward: input x, output x - max - log(sum(exp(x - max))) in that order, as ATen's
 * vec_log_softmax_lastdim computes it. Backward: inputs grad and forward's output y;
 * output grad - exp(y) * sum(grad).
 */
#ifndef PTAC_OPS_SOFTMAX_LOG_SOFTMAX_H
#define PTAC_OPS_SOFTMAX_LOG_SOFTMAX_H

#include "core/host.h"
#include "core/kernel.h"
#include "ops/softmax/softmax.h"

/* Shape kinds of both directions. */
enum {
    PTAC_LOG_SOFTMAX_SHORT = 0, /* rows up to PTAC_SHORT_ROW */
    PTAC_LOG_SOFTMAX_LONG,
};

/* classify() of both directions. */
ptac_reason ptac_log_softmax_classify(const ptac_call *call, ptac_shape *shape);

/* Elements of a row. */
static inline int64_t ptac_log_softmax_width(const ptac_call *call)
{
    const ptac_view *x = &call->inputs[0];

    return x->sizes[x->n_dims - 1];
}

/* Call the one for their width on pieces of the call's rows, cut at multiples of 16. */
void ptac_log_softmax_for_rows(const ptac_call *call, ptac_range_fn of_short,
                               ptac_range_fn of_long);

#endif
