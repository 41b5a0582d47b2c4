/*
 * softmax_cuda.h - what log_softmax.cu and its launches share.
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_CUDA_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_CUDA_H

enum {
    PTAC_SOFTMAX_THREADS = 256, /* of a block */
    PTAC_SOFTMAX_SHORT = 1024,  /* elements of the longest row that a warp takes */
};

#endif
