/*
 * gemm_bf16.h - products of operands that are rounded to bfloat16.
 */
#ifndef PTAC_BIND_TORCH_ROWS_GEMM_BF16_H
#define PTAC_BIND_TORCH_ROWS_GEMM_BF16_H

#include "bind/torch/rows/matrix.h"

/* The matrix in bfloat16: in a new tensor *owner unless it is that already. */
at_error ptac_gemm_narrow(const ptac_matrix *a, at_tensor *owner, ptac_matrix *narrow);

/* *out = a b^T, a new contiguous float matrix. a and b may be rounded already. */
at_error ptac_gemm_bf16(const ptac_matrix *a, const ptac_matrix *b, at_tensor *out);

#endif
