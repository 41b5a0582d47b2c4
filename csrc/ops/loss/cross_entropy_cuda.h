/*
 * cross_entropy_cuda.h - what launches of cross_entropy.cu pass.
 */
#ifndef PTAC_OPS_LOSS_CROSS_ENTROPY_CUDA_H
#define PTAC_OPS_LOSS_CROSS_ENTROPY_CUDA_H

enum {
    PTAC_CROSS_ENTROPY_SHORT = 1024, /* the longest row that a warp takes */
};

/* Of a tensor beside the logits. */
enum {
    PTAC_OPERAND_NONE,
    PTAC_OPERAND_FLOAT,   /* float32 */
    PTAC_OPERAND_ALIKE,   /* of the logits' dtype */
    PTAC_OPERAND_INDICES, /* int64 */
};

typedef struct ptac_cuda_cross_entropy {
    long long n_rows, ignore_index;
    int n_classes;
    float scale, shift;       /* see ptac_row_target */
    int target, weight, loss; /* PTAC_OPERAND_*; backward: of grad in place of loss */
    int is_reduced, is_mean;
    int has_packs; /* x and what is written to lie alike for 16 bytes */
} ptac_cuda_cross_entropy;

#endif
