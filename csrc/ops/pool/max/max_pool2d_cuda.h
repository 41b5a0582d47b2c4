/*
 * max_pool2d_cuda.h - the geometry that launches of max_pool2d.cu pass.
 */
#ifndef PTAC_OPS_POOL_MAX_MAX_POOL2D_CUDA_H
#define PTAC_OPS_POOL_MAX_MAX_POOL2D_CUDA_H

enum {
    PTAC_POOL_THREADS = 256,
};

typedef struct ptac_cuda_window {
    int kernel, stride, padding, dilation;
} ptac_cuda_window;

typedef struct ptac_cuda_pool {
    long long n_inputs, n_outputs; /* elements */
    int channels, height, width, out_height, out_width;
    int channels_last;
    ptac_cuda_window h, w;
} ptac_cuda_pool;

#endif
