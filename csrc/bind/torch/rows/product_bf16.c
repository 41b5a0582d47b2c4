/*
 * product_bf16.c - mm and addmm of matrices rounded to bfloat16, by oneDNN.
 *
 * Sums are float32's, their results are rounded once more; a bias is added in float32.
 */
#include "bind/torch/rows/bf16.h"

#include "ops/bf16/cast.h"

static ptac_bf16_matrix matrix_of(const ptac_view *view, int terms)
{
    return (ptac_bf16_matrix){
        view->data,
        {view->sizes[0], view->sizes[1]},
        {view->strides[0], view->strides[1]},
        terms,
    };
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];
    const int64_t sizes[2] = {a->sizes[0], b->sizes[1]};
    const int64_t n_terms = ptac_bf16_terms(a->sizes, a->strides);
    const ptac_bf16_matrix left_of = matrix_of(a, 1), right_of = matrix_of(b, 0);
    const ptac_bf16_epilogue sum = {
        .shift = call->op == PTAC_OP_ADDMM ? call->inputs[2].data : NULL,
        .n_channels = sizes[1],
        .n_planes = sizes[0],
        .size = 1,
        .channels_last = true,
    };
    AT_OWNED at_tensor left = NULL, right = NULL, product = NULL;
    int64_t unused[2];
    ptac_view narrow_product;

    if (ptac_bf16_copy(&left_of, n_terms, &left, unused) ||
        ptac_bf16_copy(&right_of, n_terms, &right, unused) ||
        ptac_new(PTAC_BF16, 2, sizes, NULL, &product, &narrow_product))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_mm_out(product, left, right))
        return PTAC_UNSUPPORTED;
    ptac_bf16_widen_channels(narrow_product.data, call->outputs[0].data, &sum);
    return PTAC_OK;
}

static ptac_reason accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

PTAC_BF16_ROW(MM, "bf16", accepts, run)
PTAC_BF16_ROW(ADDMM, "bf16", accepts, run)
