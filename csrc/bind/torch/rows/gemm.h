/*
 * gemm.h - matrix products by the libraries that torch brings.
 *
 * out = a b^T with a [m, k] and b [n, k], any strides. Providers give the same product
 * in different order of summation, one of them that of rounded operands:
 *
 *   PTAC_GEMM_BLAS     what torch.mm calls (MKL or OpenBLAS)
 *   PTAC_GEMM_ONEDNN   oneDNN, whose kernels are made for each shape when it is first
 *                      met, in 0.3 to 0.8 ms. So that programs with many shapes do not
 *                      meet many, dimensions that follow the batch are cut into pieces
 *                      of powers of two from PTAC_GEMM_PIECE on; the rest is BLAS's.
 *
 *                      Its errors on sums of 1025 to 4095 terms of one sign would
 *                      exceed level close (up to 4.2 times MKL's): these are added up
 *                      from pieces. For a second factor with gaps it has only a
 *                      reference implementation, 1000 times slower: such products go
 *                      to BLAS.
 *
 *   PTAC_GEMM_DOT_*, PTAC_GEMM_PACKED_*, PTAC_GEMM_TURNED_*, PTAC_GEMM_SMALL_*
 *                      our own, of few rows: see ops/product/product.h. Where the sum
 *                      follows the batch, or a layout is not theirs, BLAS multiplies.
 *
 *   PTAC_GEMM_BF16     oneDNN with operands rounded to bfloat16, and the results once
 *                      more; sums are float32's. Whole products, of matrices whose rows
 *                      or columns have no gaps between elements.
 *
 * MKL does not use AVX-512 on AMD's CPUs and oneDNN does: 100 against 220 GFLOP/s on
 * Zen 5. Elsewhere they are close; the calibration table knows.
 */
#ifndef PTAC_BIND_TORCH_ROWS_GEMM_H
#define PTAC_BIND_TORCH_ROWS_GEMM_H

#include "bind/torch/bridge.h"

/* A borrowed handle; sizes and strides count elements. */
typedef struct ptac_matrix {
    at_tensor tensor;
    int64_t offset; /* from the tensor's first element */
    int64_t sizes[2], strides[2];
} ptac_matrix;

static inline ptac_matrix ptac_transposed(ptac_matrix a)
{
    return (ptac_matrix){
        a.tensor, a.offset, {a.sizes[1], a.sizes[0]}, {a.strides[1], a.strides[0]}};
}

typedef enum ptac_gemm {
    PTAC_GEMM_BLAS,
    PTAC_GEMM_ONEDNN,
    PTAC_GEMM_DOT_AVX2,
    PTAC_GEMM_DOT_AVX512,
    PTAC_GEMM_PACKED_AVX2,
    PTAC_GEMM_PACKED_AVX512,
    PTAC_GEMM_TURNED_AVX2,
    PTAC_GEMM_TURNED_AVX512,
    PTAC_GEMM_SMALL_AVX2,
    PTAC_GEMM_SMALL_AVX512,
    PTAC_GEMM_BF16,
} ptac_gemm;

enum {
    PTAC_GEMM_PIECE = 32,
    PTAC_GEMM_TERMS = 1024,
    PTAC_GEMM_MANY_TERMS = 4096,
};

/*
 * The user allows torch less than float32 in products on this CPU. Where torch does not
 * say so to C, this is false.
 */
bool ptac_products_are_lowered(void);

/* The provider exists in this torch. */
bool ptac_gemm_can(ptac_gemm provider);

/*
 * *out = a b^T, a new contiguous [m, n], where the rows of a follow the batch. bias [n]
 * may be NULL. *has_bias tells whether the provider added it; the caller does it
 * otherwise, and any activation, since oneDNN's own ReLU makes zeros of NaN. On error
 * nothing is left behind.
 */
at_error ptac_gemm_rows(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                        at_tensor bias, at_tensor *out, bool *has_bias);

/*
 * The same into the memory of a contiguous matrix, which *out is then another handle
 * of, by providers that can: BLAS and our own. NULL: a new one. Where kept is not NULL,
 * b is the same each time.
 */
at_error ptac_gemm_rows_into(ptac_gemm provider, const ptac_matrix *a,
                             const ptac_matrix *b, at_tensor bias, at_tensor into,
                             ptac_kept *kept, at_tensor *out, bool *has_bias);

/*
 * *out = a b^T, a new contiguous [m, n], where the summed dimension follows the batch.
 */
at_error ptac_gemm_sum(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                       at_tensor *out);

/*
 * The matrix in bfloat16, in a new tensor *owner unless it is that already: rounded
 * once, it can be multiplied several times. made, which may be a, stays as it is where
 * a, or its transpose, cannot be multiplied without zeros behind its terms.
 */
at_error ptac_gemm_narrow(const ptac_matrix *a, at_tensor *owner, ptac_matrix *made);

#endif
