/*
 * dropout_cuda.h - torch's grid, and what launches of dropout.cu pass.
 */
#ifndef PTAC_OPS_RANDOM_DROPOUT_CUDA_H
#define PTAC_OPS_RANDOM_DROPOUT_CUDA_H

#include "ops/random/philox_state.h"

enum {
    PTAC_DROPOUT_THREADS = 256, /* of a block: torch's */
};

typedef struct ptac_cuda_dropout {
    long long n;
    ptac_philox_state random;
    float keep, scale;
    int vector;
} ptac_cuda_dropout;

#endif
