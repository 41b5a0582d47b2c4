/*
 * quantized_kernel.h - what quantized_linear.cu and its launches share.
 */
#ifndef PTAC_OPS_INT8_CUDA_QUANTIZED_KERNEL_H
#define PTAC_OPS_INT8_CUDA_QUANTIZED_KERNEL_H

#include "ops/linear/act.h"

enum {
    PTAC_QUANTIZED_THREADS = 256, /* of a block, which quantizes a row */
    /* Elements of a thread at a time, as many bytes of the result. */
    PTAC_QUANTIZED_UNIT = 16,
    PTAC_DEQUANTIZE_UNIT = 4,  /* columns of a thread */
    PTAC_DEQUANTIZE_ROWS = 16, /* rows of a block, all by the same threads */
};

/* A row's activations are scale * (q - zero), q in 0..255; the product has q - 128. */
typedef struct ptac_cuda_row_scale {
    float scale; /* NaN where a value of the row is not finite */
    int zero;
} ptac_cuda_row_scale;

typedef struct ptac_dequantize {
    long long n_rows, n_cols;
    long long ld_sums, ld_y;
    int n_across; /* blocks beside each other */
    int act;
} ptac_dequantize;

#endif
