/*
 * pool_cuda.h - the geometry that launches of pooling pass to their kernels.
 */
#ifndef PTAC_OPS_POOL_POOL_CUDA_H
#define PTAC_OPS_POOL_POOL_CUDA_H

#include "device/cuda/division.h"

enum {
    PTAC_POOL_THREADS = 256,
};

typedef struct ptac_cuda_window {
    int kernel, padding, dilation;
    ptac_divisor stride;
} ptac_cuda_window;

/* Numbers of elements fit in an int. */
typedef struct ptac_cuda_pool {
    int n_inputs, n_outputs; /* elements */
    int channels_last;
    ptac_divisor channels, height, width, out_height, out_width;
    ptac_cuda_window h, w;
} ptac_cuda_pool;

#endif
