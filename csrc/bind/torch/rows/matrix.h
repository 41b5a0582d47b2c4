/*
 * matrix.h - a matrix inside a tensor, as products read it.
 */
#ifndef PTAC_BIND_TORCH_ROWS_MATRIX_H
#define PTAC_BIND_TORCH_ROWS_MATRIX_H

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

#endif
