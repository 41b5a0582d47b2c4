/*
 * product_bf16.c - mm and addmm of matrices rounded to bfloat16, by oneDNN.
 *
 * Sums are float32's, their results are rounded once more; a bias is added in float32.
 */
#include "bind/torch/rows/bf16.h"

#include "ops/bf16/cast.h"

enum {
    TILE_TERMS = 32, /* of a tile of AMX */
};

static bool is_row_by_row(const ptac_view *matrix)
{
    return matrix->strides[1] == 1 || matrix->sizes[1] == 1;
}

/* The matrix rounded, in the order that it has. */
static at_error narrow(const ptac_view *matrix, at_tensor *made)
{
    const int inner = is_row_by_row(matrix);
    const int64_t n_rows = matrix->sizes[!inner], n_cols = matrix->sizes[inner];
    int64_t strides[2];
    ptac_view copy;

    strides[inner] = 1;
    strides[!inner] = n_cols;
    if (ptac_new(PTAC_BF16, 2, matrix->sizes, strides, made, &copy))
        return 1;
    ptac_bf16_narrow_rows(matrix->data, matrix->strides[!inner], n_rows, n_cols,
                          copy.data);
    return 0;
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];
    const int64_t sizes[2] = {a->sizes[0], b->sizes[1]};
    const ptac_bf16_epilogue sum = {
        .shift = call->op == PTAC_OP_ADDMM ? call->inputs[2].data : NULL,
        .n_channels = sizes[1],
        .n_planes = sizes[0],
        .size = 1,
        .channels_last = true,
    };
    AT_OWNED at_tensor left = NULL, right = NULL, product = NULL;
    ptac_view narrow_product;

    if (narrow(a, &left) || narrow(b, &right) ||
        ptac_new(PTAC_BF16, 2, sizes, NULL, &product, &narrow_product))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_mm_out(product, left, right))
        return PTAC_UNSUPPORTED;
    ptac_bf16_widen_channels(narrow_product.data, call->outputs[0].data, &sum);
    return PTAC_OK;
}

/*
 * With AMX oneDNN reads whole tiles of rows, also beyond a row's end, and multiplies
 * what it finds there by zeros: a NaN in the next row would spread to this one.
 */
static ptac_reason accepts(const ptac_call *call)
{
    const ptac_view *a = &call->inputs[0];

    if (a->dtype != PTAC_F32)
        return PTAC_DTYPE;
    return ptac_cpu_features() & PTAC_CPU_AMX_BF16 && is_row_by_row(a) &&
                   a->sizes[1] % TILE_TERMS != 0
               ? PTAC_SHAPE
               : PTAC_TAKE;
}

PTAC_BF16_ROW(MM, "bf16", accepts, run)
PTAC_BF16_ROW(ADDMM, "bf16", accepts, run)
