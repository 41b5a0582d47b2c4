/*
 * max_pool2d_backward.h - what the rows of max pooling's gradient share.
 *
 * Indices come from the caller, who may have made them up: a row checks each before
 * it writes, leaves out -1 as stock does, and gives the call back when one lies
 * outside its plane.
 */
#ifndef PTAC_OPS_POOL_MAX_MAX_POOL2D_BACKWARD_H
#define PTAC_OPS_POOL_MAX_MAX_POOL2D_BACKWARD_H

#include "ops/pool/max/max_pool2d.h"

#include <string.h>

/* A run over planes or images, and what its threads have found. */
typedef struct ptac_scatter {
    const ptac_call *call;
    int64_t n_found; /* outputs whose index is a position of their window */
    bool out_of_range;
} ptac_scatter;

/* The definition; PTAC_UNSUPPORTED where an index lies outside of its plane. */
ptac_status ptac_scatter_all(ptac_scatter *job);

#endif
