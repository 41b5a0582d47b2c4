/*
 * norm_cuda.h - how norm.cu and norm_backward.cu and their launches deal rows out.
 *
 * A group of lanes, 32 times a power of two, has a row, and a block of 256 threads
 * several rows, unless one row takes 512. A lane keeps its part of the row in
 * registers, with the weights that belong to it: forward three values an element, the
 * gradient six. 16 elements a lane leave room below 128 registers, with which 512
 * threads fit on a multiprocessor, each with 64 bytes on their way; that is twice what
 * hides the memory's latency. Rows beyond 8192 elements are read twice.
 * Rows that do not lie as 16-byte packs are read one element at a time, by twice the
 * lanes.
 */
#ifndef PTAC_OPS_NORM_NORM_CUDA_H
#define PTAC_OPS_NORM_NORM_CUDA_H

enum {
    PTAC_NORM_EACH = 16,       /* elements of a row that a lane has */
    PTAC_NORM_SINGLE_EACH = 8, /* likewise, where it reads them one by one */
    PTAC_NORM_THREADS = 256,
    PTAC_NORM_MOST_LANES = 512,
    PTAC_NORM_SHARING = 128,   /* most lanes of a group beside which there is another */
    PTAC_NORM_BLOCKS = 2,      /* of a multiprocessor */
    PTAC_NORM_COLUMNS = 32,    /* of a block that sums parts */
    PTAC_NORM_LONG_PARTS = 16, /* of the weights' gradients of rows read twice */
};

typedef struct ptac_cuda_norm {
    long long n_rows;
    int width, lanes;
    float eps;
    int is_rms;
} ptac_cuda_norm;

#endif
