/*
 * bias_act_cuda.h - what bias_act.cu and its launches share.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_BIAS_ACT_CUDA_H
#define PTAC_OPS_LINEAR_CUDA_BIAS_ACT_CUDA_H

#include "ops/linear/act.h"

enum {
    PTAC_BIAS_ACT_THREADS = 256, /* of a block */
    /* Columns of a thread: a byte of ReLU's mask, 16 bytes or twice of elements. */
    PTAC_BIAS_ACT_UNIT = 8,
};

/*
 * How blocks cover a matrix. A block's threads stand in lines of `width`, a power of
 * two; it takes as many units of columns, and goes down its group of rows. Blocks of a
 * group follow one another.
 */
typedef struct ptac_bias_act_tiles {
    long long n_rows, n_cols;
    long long group; /* rows in each group */
    int width;
    int n_across; /* blocks in a group */
} ptac_bias_act_tiles;

/* Elements between rows, 0 where there is no such matrix; of mask in bytes. */
typedef struct ptac_bias_act_lds {
    long long z, y, kept, mask;
} ptac_bias_act_lds;

typedef struct ptac_bias_act_grad_lds {
    long long g, saved, mask, gz;
} ptac_bias_act_grad_lds;

#endif
