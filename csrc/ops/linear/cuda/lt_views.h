/*
 * lt_views.h - what rows on CUDA ask of the views of a call, before these are matrices
 * of cuBLASLt's.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_LT_VIEWS_H
#define PTAC_OPS_LINEAR_CUDA_LT_VIEWS_H

#include "ops/linear/cuda/lt_step.h"
#include "ops/linear/products.h"

/* The device has a handle of cuBLASLt's, and the workspace lies as it has to. */
static inline bool ptac_lt_can(const ptac_products *products)
{
    return ptac_lt_on(products->device) &&
           (uintptr_t)products->workspace % PTAC_LT_WORKSPACE_ALIGNMENT == 0;
}

/* Of a call whose workspace begins with so many bytes that it keeps. */
static inline ptac_lt_place ptac_lt_place_of(const ptac_call *call,
                                             const ptac_products *products, size_t kept)
{
    return (ptac_lt_place){
        .call = call,
        .dtype = call->inputs[0].dtype,
        .allows_tf32 = products->allows_tf32,
        .only_known = products->only_known,
        .device = products->device,
        .workspace = {(char *)products->workspace + kept,
                      products->workspace_bytes - kept},
    };
}

/* What a call is told for which there is no plan. */
static inline ptac_status ptac_lt_refused(const ptac_products *products)
{
    return products->only_known ? PTAC_NOT_YET : PTAC_UNSUPPORTED;
}

static inline bool ptac_lt_is_matrix(const ptac_view *view, int64_t n_rows,
                                     int64_t n_cols)
{
    const int64_t sizes[] = {n_rows, n_cols};

    return ptac_view_has_sizes(view, 2, sizes) &&
           (n_cols == 1 || view->strides[1] == 1) &&
           (n_rows == 1 || view->strides[0] >= n_cols);
}

/* n elements, one behind the other; or none, where there is no data. */
static inline bool ptac_lt_may_be_bias(const ptac_view *view, int64_t n)
{
    return !view->data ||
           (ptac_view_has_sizes(view, 1, &n) && ptac_view_is_contiguous(view));
}

/* A single row may have any stride, which the library would not take. */
static inline ptac_lt_matrix ptac_lt_matrix_of(const ptac_view *view)
{
    if (!view->data || view->n_dims != 2)
        return (ptac_lt_matrix){NULL, 0};
    return (ptac_lt_matrix){view->data,
                            view->sizes[0] == 1 ? view->sizes[1] : view->strides[0]};
}

/* Bytes of a dense matrix in a workspace, and of what lets the next begin aligned. */
static inline size_t ptac_lt_bytes(int64_t n_rows, int64_t n_cols, ptac_dtype dtype)
{
    const int64_t bytes = n_rows * n_cols * (dtype == PTAC_F32 ? 4 : 2);

    return (size_t)ptac_parts(bytes, PTAC_LT_WORKSPACE_ALIGNMENT) *
           PTAC_LT_WORKSPACE_ALIGNMENT;
}

/* The first n_inputs that have data are of one dtype, which products take. */
static inline ptac_reason ptac_lt_same_dtype(const ptac_call *call, int n_inputs)
{
    if (ptac_lt_type(call->inputs[0].dtype) < 0)
        return PTAC_DTYPE;
    for (int i = 1; i < n_inputs; i++)
        if (call->inputs[i].data && call->inputs[i].dtype != call->inputs[0].dtype)
            return PTAC_DTYPE;
    return PTAC_TAKE;
}

#endif
