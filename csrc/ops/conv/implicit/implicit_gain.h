/*
 * implicit_gain.h - how many times as fast as stock a convolution is expected to be.
 *
 * What either side takes is a sum of amounts, each at a price: multiply-adds, elements
 * that are copied, weights that are read, and what a call costs whatever its size. The
 * prices are those that come nearest to the times of some thousand random convolutions
 * (python -m benchmarks.prices). They are of one kind of CPU; on others it is their
 * quotient that counts, of which large errors on both sides are the same. More threads
 * than two are estimated as two.
 */
#ifndef PTAC_OPS_CONV_IMPLICIT_IMPLICIT_GAIN_H
#define PTAC_OPS_CONV_IMPLICIT_IMPLICIT_GAIN_H

#include "ops/conv/implicit/implicit.h"

/* Of a thread. */
enum {
    PTAC_OURS_CALL,
    PTAC_OURS_CYCLES, /* of products */
    PTAC_OURS_BLOCKS, /* of them, or of weights' gradients, sums read and written */
    PTAC_OURS_COPIED, /* elements of the source: as they lie, */
    PTAC_OURS_HALVED, /* every second */
    PTAC_OURS_PICKED, /* or fewer */
    PTAC_OURS_RUNS,   /* of elements copied */
    PTAC_OURS_GIVEN,  /* runs of results copied */
    PTAC_OURS_WEIGHTS,
    PTAC_OURS_AGAIN,     /* elements that are read where they lie, each time they are */
    PTAC_OURS_SCATTERED, /* results, where neighbours are not of one class; of pairs or
                          * stored one by one, which counts twice */
    PTAC_OURS_PACKED,    /* weights */
    PTAC_N_OURS,
};

/* Of a thread; channels as many as oneDNN's blocks of them have. */
enum {
    PTAC_STOCK_CALL,
    PTAC_STOCK_PRODUCTS,
    PTAC_STOCK_IN,  /* elements of x, but of a network's first layer */
    PTAC_STOCK_OUT, /* and of y, or of their gradients */
    PTAC_STOCK_WEIGHTS,
    PTAC_STOCK_SPREAD,  /* elements of x, one group, whose gradient a stride spreads */
    PTAC_STOCK_COLUMNS, /* of groups whose channels fill no blocks; else none */
    PTAC_N_STOCK,
};

typedef struct ptac_implicit_amounts {
    double ours[PTAC_N_OURS], stock[PTAC_N_STOCK];
    bool is_lowered; /* stock makes columns */
    double gain;
} ptac_implicit_amounts;

/*
 * Of a convolution of images or of one of its gradients, not of transposed ones; 0: of
 * one that ATen does itself, unknown.
 */
double ptac_implicit_gain(const ptac_call *call, const ptac_implicit_stages *stages);

/* Of the last gain that this thread asked for. */
const ptac_implicit_amounts *ptac_implicit_last_amounts(void);

#endif
