/*
 * softmax.h - softmax and log-softmax over a dimension of dense tensors, and what
 * losses share with them. Level close.
 *
 * log_softmax: input x, output x - max - log(sum(exp(x - max))) in that order, as
 * ATen's vec_log_softmax_lastdim computes it. Backward: inputs grad and forward's
 * output y; output grad - exp(y) * sum(grad).
 *
 * softmax: exp(x - max) over its sum. Backward: inputs grad and forward's output y;
 * output y * (grad - sum(grad * y)).
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    /*
     * Rows up to this width are worked on in blocks, which is faster than one by one up
     * to about 90 elements with AVX2 and 130 with AVX-512. Calibration measures them
     * apart.
     */
    PTAC_SHORT_ROW = 96,
    PTAC_SOFTMAX_WORK = 32768, /* elements that are worth another thread */
    PTAC_STRIP = 256,
    PTAC_LEAST_INNER = 16, /* fewer side by side would leave lanes empty */
};

/* Elements of a row, and how far apart they lie: 1 where it is the last dimension. */
typedef struct ptac_softmax {
    int64_t width, inner;
} ptac_softmax;

static inline int64_t ptac_softmax_width(const ptac_call *call)
{
    return ((const ptac_softmax *)call->params)->width;
}

/* Strips of at most PTAC_STRIP elements that lie side by side, in each inner ones. */
static inline int64_t ptac_strips(const ptac_call *call)
{
    const ptac_softmax *p = call->params;

    return (p->inner + PTAC_STRIP - 1) / PTAC_STRIP;
}

/* A row of a tensor whose rows have n elements. */
static inline float *ptac_row(const ptac_view *view, int64_t row, int64_t n)
{
    return (float *)view->data + row * n;
}

/*
 * Call the one for their width on pieces of the rows, or of_strips on pieces of the
 * strips; the call is the context.
 */
static inline ptac_status ptac_softmax_run(const ptac_call *call,
                                           ptac_range_fn of_short,
                                           ptac_range_fn of_long,
                                           ptac_range_fn of_strips)
{
    const ptac_softmax *p = call->params;
    const int64_t width = p->width, n = call->inputs[0].n_elements;

    if (p->inner > 1) {
        ptac_parallel_for(0, n / (width * p->inner) * ptac_strips(call),
                          PTAC_SOFTMAX_WORK / (width * PTAC_STRIP) + 1, of_strips,
                          (void *)call);
        return PTAC_OK;
    }
    ptac_parallel_for(0, n / width, PTAC_SOFTMAX_WORK / width + 1,
                      width > PTAC_SHORT_ROW ? of_long : of_short, (void *)call);
    return PTAC_OK;
}

/* The logarithm of the sum of exp(x[i]), less *max, by its definition. */
double ptac_log_sum(const float *x, int64_t n, double *max);

/* The rows of an instruction set: functions that have the operators' names. */
#define PTAC_SOFTMAX_ROWS(name, features)                                              \
    PTAC_ROW(SOFTMAX, name, PTAC_CLOSE, features, ptac_accept_all, softmax)            \
    PTAC_ROW(SOFTMAX_BACKWARD, name, PTAC_CLOSE, features, ptac_accept_all,            \
             softmax_backward)                                                         \
    PTAC_ROW(LOG_SOFTMAX, name, PTAC_CLOSE, features, ptac_accept_all, log_softmax)    \
    PTAC_ROW(LOG_SOFTMAX_BACKWARD, name, PTAC_CLOSE, features, ptac_accept_all,        \
             log_softmax_backward)

#endif
