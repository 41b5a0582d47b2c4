/*
 * softmax_cuda.h - what kernels of the softmax family and their launches share.
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_CUDA_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_CUDA_H

enum {
    PTAC_SOFTMAX_THREADS = 256, /* of a block */
    PTAC_SOFTMAX_PACKS = 8,     /* of a thread, 16 bytes each, that registers keep */
};

#endif
