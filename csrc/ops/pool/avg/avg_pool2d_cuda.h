/*
 * avg_pool2d_cuda.h - what launches of avg_pool2d.cu pass.
 */
#ifndef PTAC_OPS_POOL_AVG_AVG_POOL2D_CUDA_H
#define PTAC_OPS_POOL_AVG_AVG_POOL2D_CUDA_H

#include "ops/pool/pool_cuda.h"

/* As ptac_avg_pool2d; products of a size and a number of outputs fit in an int. */
typedef struct ptac_cuda_avg_pool {
    ptac_cuda_pool pool;
    int divisor;
    int count_include_pad, is_adaptive, is_regular;
} ptac_cuda_avg_pool;

#endif
