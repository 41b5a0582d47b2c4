/*
 * gemm_bf16.c - products of operands that are rounded to bfloat16, by oneDNN.
 */
#include "bind/torch/rows/gemm_bf16.h"

#include "bind/torch/rows/bf16.h"
#include "ops/bf16/cast.h"

at_error ptac_gemm_narrow(const ptac_matrix *a, at_tensor *owner, ptac_matrix *narrow)
{
    const bool by_columns = a->strides[1] != 1;
    const int inner = by_columns ? 0 : 1;
    const int64_t n_rows = a->sizes[!inner], n_cols = a->sizes[inner];
    int64_t strides[2];
    int32_t dtype = -1;
    uint16_t *data;
    void *from = NULL;
    at_error error = T.aoti_torch_get_dtype(a->tensor, &dtype);

    *narrow = *a;
    if (error || dtype == AT_DTYPE_BF16)
        return error;
    strides[inner] = 1;
    strides[!inner] = n_cols;
    error = ptac_bf16_new(2, a->sizes, strides, owner, &data);
    if (!error)
        error = T.aoti_torch_get_data_ptr(a->tensor, &from);
    if (error)
        return error;
    ptac_bf16_narrow_rows((const float *)from + a->offset, a->strides[!inner], n_rows,
                          n_cols, data);
    *narrow =
        (ptac_matrix){*owner, 0, {a->sizes[0], a->sizes[1]}, {strides[0], strides[1]}};
    return 0;
}

static at_error tensor_of(const ptac_matrix *a, at_tensor *tensor)
{
    return T.aoti_torch__reinterpret_tensor(a->tensor, 2, a->sizes, a->strides,
                                            a->offset, tensor);
}

at_error ptac_gemm_bf16(const ptac_matrix *a, const ptac_matrix *b, at_tensor *out)
{
    const int64_t m = a->sizes[0], n = b->sizes[0];
    const int64_t sizes[2] = {m, n}, strides[2] = {n, 1};
    AT_OWNED at_tensor a_owner = NULL, b_owner = NULL, left = NULL, right = NULL;
    AT_OWNED at_tensor product = NULL;
    ptac_matrix a16, b16;
    uint16_t *data;
    at_error error = ptac_gemm_narrow(a, &a_owner, &a16);

    if (!error)
        error = ptac_gemm_narrow(b, &b_owner, &b16);
    if (!error)
        error = tensor_of(&a16, &left);
    if (!error) {
        b16 = ptac_transposed(b16);
        error = tensor_of(&b16, &right);
    }
    if (!error)
        error = ptac_bf16_new(2, sizes, strides, &product, &data);
    if (!error)
        error = T.aoti_torch_cpu_mm_out(product, left, right);
    return error ? error : ptac_bf16_widened(product, out) != PTAC_OK;
}
