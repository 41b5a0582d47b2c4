/*
 * fp8_linear_cuda.c - the row of fp8_linear on CUDA; there is none elsewhere.
 */
#include "bind/torch/rows/cuda/quantized_linear_cuda.h"

/* All: the product leaves floats, and nothing of its size beside them. */
static int64_t rows_at_once(const ptac_quantized_linear *job)
{
    return job->m;
}

static size_t bytes(const ptac_quantized_linear *job)
{
    return ptac_fp8_linear_cuda_bytes(job->m, job->k);
}

static ptac_reason read_weight(ptac_quantized_on_cuda *c, const ptac_view *weight)
{
    const int64_t sizes[] = {c->job.n, c->job.k};
    int32_t dtype = -1;

    T.aoti_torch_get_dtype(c->weight, &dtype);
    if (dtype != AT_DTYPE_E4M3 || !ptac_view_has_sizes(weight, 2, sizes) ||
        !ptac_view_is_contiguous(weight))
        return PTAC_ARGUMENT;
    if (c->job.n % PTAC_QUANTIZED_PAD || c->job.k % PTAC_QUANTIZED_PAD)
        return PTAC_SHAPE;
    c->job.weight = weight->data;
    return PTAC_TAKE;
}

const ptac_linear_format ptac_fp8_on_cuda = {
    .op = PTAC_OP_FP8_LINEAR,
    .read_weight = read_weight,
    .rows_at_once = rows_at_once,
    .bytes = bytes,
    .accepts = ptac_fp8_linear_cuda_accepts,
    .plan = ptac_fp8_linear_cuda_plan,
    .run = ptac_fp8_linear_cuda,
};

/* Sums in float32, in the library's order. */
PTAC_ROW(FP8_LINEAR, "cuda", PTAC_CLOSE, 0, ptac_quantized_accepts, ptac_quantized_run,
         .device = PTAC_ON_CUDA)
