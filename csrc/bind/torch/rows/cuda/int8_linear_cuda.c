/*
 * int8_linear_cuda.c - the row of int8_linear on CUDA.
 */
#include "bind/torch/rows/cuda/quantized_linear_cuda.h"

/* Of the sums of one part: 16,384 rows of 4,096 columns. */
static int64_t most_sums_bytes = (int64_t)1 << 28;

enum {
    ROWS_UNIT = 128, /* that products are computed in tiles of */
};

void ptac_int8_on_cuda_set_most(int64_t bytes)
{
    __atomic_store_n(&most_sums_bytes, bytes, __ATOMIC_RELAXED);
}

/* Rows of a part. */
static int64_t rows_at_once(const ptac_quantized_linear *job)
{
    const int64_t row_bytes = ptac_quantized_padded(job->n) * (int64_t)sizeof(int32_t);
    const int64_t fits = __atomic_load_n(&most_sums_bytes, __ATOMIC_RELAXED) /
                         row_bytes / ROWS_UNIT * ROWS_UNIT;
    const int64_t rows = fits ? fits : ROWS_UNIT;

    return job->m < rows ? job->m : rows;
}

static size_t bytes(const ptac_quantized_linear *job)
{
    return ptac_int8_linear_cuda_bytes(rows_at_once(job), job->n, job->k);
}

static ptac_reason read_weight(ptac_quantized_on_cuda *c, const ptac_view *weight)
{
    ptac_quantized_linear *job = &c->job;
    const int64_t k = ptac_quantized_padded(job->k), n = ptac_quantized_padded(job->n);
    const int64_t sums = job->n * (int64_t)sizeof(int32_t);
    const int64_t sizes[] = {n + ptac_parts(sums, k), k};
    int32_t dtype = -1;

    T.aoti_torch_get_dtype(c->weight, &dtype);
    if (dtype != AT_DTYPE_I8 || !ptac_view_has_sizes(weight, 2, sizes) ||
        !ptac_view_is_contiguous(weight))
        return PTAC_ARGUMENT;
    job->weight = weight->data;
    job->column_sums = (const int32_t *)((const char *)weight->data + n * k);
    return PTAC_TAKE;
}

const ptac_linear_format ptac_int8_on_cuda = {
    .op = PTAC_OP_INT8_LINEAR,
    .read_weight = read_weight,
    .rows_at_once = rows_at_once,
    .bytes = bytes,
    .accepts = ptac_int8_linear_cuda_accepts,
    .plan = ptac_int8_linear_cuda_plan,
    .run = ptac_int8_linear_cuda,
};

/* The sums are exact: these are the bits of the operator's rows on the CPU. */
PTAC_ROW(INT8_LINEAR, "cuda", PTAC_EXACT, 0, ptac_quantized_accepts, ptac_quantized_run,
         .device = PTAC_ON_CUDA)
