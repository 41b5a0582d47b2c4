/*
 * mean.h - means over dimensions that follow each other in memory. Level close.
 *
 *   y[o][i] = (x[o][0][i] + ... + x[o][n - 1][i]) / n
 *
 * x is outer * n * inner floats without gaps, y outer * inner. Where inner is 1 the
 * means are those of rows, as over the pixels of NCHW; else of columns, as over those
 * of NHWC. The sum is rounded to float and then divided, as in ATen's mean.
 *
 * Vector rows add up at most PTAC_MEAN_CHAIN terms one after another in float, as ATen
 * does: equal elements round the same way each time, so the error of a long chain does
 * not average out. Each mean is computed by one thread, in an order that depends on
 * sizes alone.
 */
#ifndef PTAC_OPS_MEAN_MEAN_H
#define PTAC_OPS_MEAN_MEAN_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_MEAN_CHAIN = 16,
    PTAC_MEAN_GRAIN = 32768, /* elements that are worth a thread */
};

typedef struct ptac_mean {
    int64_t outer, n, inner;
} ptac_mean;

/* Refuses a few long rows, which stock shares among threads in pieces. */
ptac_reason ptac_mean_accepts(const ptac_call *call);

/* Share count parts among threads, each of which has so many of x's elements. */
static inline void ptac_share_means(const ptac_call *call, int64_t count,
                                    int64_t elements, ptac_range_fn body)
{
    ptac_parallel_for(0, count, PTAC_MEAN_GRAIN / elements + 1, body, (void *)call);
}

#endif
