/*
 * relu_max_pool2d_cuda.h - what launches of relu_max_pool2d pass to its kernels.
 */
#ifndef PTAC_OPS_POOL_RELU_MAX_RELU_MAX_POOL2D_CUDA_H
#define PTAC_OPS_POOL_RELU_MAX_RELU_MAX_POOL2D_CUDA_H

#include "ops/pool/pool_cuda.h"

enum {
    PTAC_POOL_NO_TAP = 255,
};

typedef struct ptac_cuda_relu_pool {
    ptac_cuda_pool pool;
    ptac_divisor dilation_h, dilation_w;
} ptac_cuda_relu_pool;

#endif
