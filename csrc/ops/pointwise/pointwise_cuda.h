/*
 * pointwise_cuda.h - how pointwise.cu is launched.
 */
#ifndef PTAC_OPS_POINTWISE_POINTWISE_CUDA_H
#define PTAC_OPS_POINTWISE_POINTWISE_CUDA_H

enum {
    PTAC_POINTWISE_THREADS = 256,
};

#endif
