/*
 * quantized_linear_cuda.c - rows quantized, multiplied, and made floats again.
 */
#include "device/cuda/launch.h"
#include "ops/int8/cuda/quantized_kernel.h"
#include "ops/int8/cuda/quantized_linear.h"
#include "ops/int8/isa.h"

enum {
    FP8_CAPABILITY = 90,
    FP8_VERSION = 120900,
    PACK_BYTES = 16,
};

PTAC_CUDA_UNIT(quantized_linear)

#define KERNELS(prefix) PTAC_CUDA_KERNELS(quantized_linear, prefix)

static ptac_cuda_kernel to_int8[] = KERNELS("quantize_int8");
static ptac_cuda_kernel to_int8_wide[] = KERNELS("quantize_int8_wide");
static ptac_cuda_kernel to_fp8[] = KERNELS("quantize_fp8");
static ptac_cuda_kernel to_fp8_wide[] = KERNELS("quantize_fp8_wide");
static ptac_cuda_kernel to_floats[] = KERNELS("dequantize");

/* The call's workspace: quantized rows, their scales, sums, and what is left. */
typedef struct room {
    void *q, *scales, *sums;
    ptac_lt_workspace rest;
} room;

static size_t aligned(int64_t bytes)
{
    const int64_t unit = PTAC_LT_WORKSPACE_ALIGNMENT;

    return (size_t)(ptac_parts(bytes, unit) * unit);
}

static size_t rows_bytes(int64_t m, int64_t k)
{
    return aligned(m * ptac_quantized_padded(k));
}

static size_t scales_bytes(int64_t m)
{
    return aligned(m * (int64_t)sizeof(ptac_cuda_row_scale));
}

static size_t sums_bytes(int64_t m, int64_t n)
{
    return aligned(m * ptac_quantized_padded(n) * (int64_t)sizeof(int32_t));
}

size_t ptac_int8_linear_cuda_bytes(int64_t m, int64_t n, int64_t k)
{
    return rows_bytes(m, k) + scales_bytes(m) + sums_bytes(m, n);
}

size_t ptac_fp8_linear_cuda_bytes(int64_t m, int64_t k)
{
    return rows_bytes(m, k) + scales_bytes(m);
}

static room divide(const ptac_lt_place *place, const ptac_quantized_linear *job,
                   size_t needed)
{
    char *at = place->workspace.data;

    return (room){
        .q = at,
        .scales = at + rows_bytes(job->m, job->k),
        .sums = at + rows_bytes(job->m, job->k) + scales_bytes(job->m),
        .rest = {at + needed, place->workspace.bytes - needed},
    };
}

static bool is_aligned(const void *data, size_t alignment)
{
    return (uintptr_t)data % alignment == 0;
}

static ptac_reason accepts(const ptac_lt_place *place, const ptac_quantized_linear *job)
{
    if (ptac_lt_type(place->dtype) < 0)
        return PTAC_DTYPE;
    if (job->m <= 0 || job->n <= 0 || job->k <= 0)
        return PTAC_EMPTY;
    if (job->m > INT32_MAX || job->n > INT32_MAX || job->k > PTAC_INT8_MOST_TERMS)
        return PTAC_SHAPE;
    if (!is_aligned(job->weight, PACK_BYTES) ||
        !is_aligned(place->workspace.data, PTAC_LT_WORKSPACE_ALIGNMENT))
        return PTAC_LAYOUT;
    return ptac_lt_on(place->device) ? ptac_cuda_ask(&unit_quantized_linear)
                                     : PTAC_DEVICE;
}

ptac_reason ptac_int8_linear_cuda_accepts(const ptac_lt_place *place,
                                          const ptac_quantized_linear *job)
{
    return accepts(place, job);
}

ptac_reason ptac_fp8_linear_cuda_accepts(const ptac_lt_place *place,
                                         const ptac_quantized_linear *job)
{
    const ptac_lt_device *device = ptac_lt_on(place->device);
    ptac_reason reason;

    if (!device || device->capability != FP8_CAPABILITY ||
        ptac_lt.version() < FP8_VERSION)
        return PTAC_DEVICE;
    if (job->n % PTAC_QUANTIZED_PAD)
        return PTAC_SHAPE;
    reason = accepts(place, job);
    return reason ? reason : ptac_bias_act_ask();
}

/* A block a row. */
static ptac_status quantize(const ptac_lt_place *place,
                            const ptac_quantized_linear *job, const room *r,
                            bool is_fp8)
{
    const int64_t bytes = job->x.ld * (place->dtype == PTAC_F32 ? 4 : 2);
    const bool wide = bytes % PACK_BYTES == 0 && is_aligned(job->x.data, PACK_BYTES);
    ptac_cuda_kernel *kernels = is_fp8 ? wide ? to_fp8_wide : to_fp8
                                : wide ? to_int8_wide
                                       : to_int8;
    void *x = job->x.data, *q = r->q, *scales = r->scales;
    int64_t n = job->k, ld = job->x.ld, ld_q = ptac_quantized_padded(job->k);

    return ptac_cuda_launch(&kernels[place->dtype], place->call, job->m,
                            PTAC_QUANTIZED_THREADS,
                            PTAC_PARAMETERS(&x, &q, &scales, &n, &ld, &ld_q));
}

static ptac_status dequantize(const ptac_lt_place *place,
                              const ptac_quantized_linear *job, const room *r)
{
    const int64_t size = place->dtype == PTAC_F32 ? 4 : 2;
    const size_t pack = (size_t)size * PTAC_DEQUANTIZE_UNIT;
    const int64_t n_across =
        ptac_parts(job->n, (int64_t)PTAC_QUANTIZED_THREADS * PTAC_DEQUANTIZE_UNIT);
    ptac_dequantize p = {
        .n_rows = job->m,
        .n_cols = job->n,
        .ld_sums = ptac_quantized_padded(job->n),
        .ld_y = job->y.ld,
        .n_across = (int)n_across,
        .act = (int)job->act,
    };
    ptac_quantized_linear j = *job;
    void *sums = r->sums, *row_scales = r->scales;
    int is_wide = is_aligned(j.y.data, pack) && (size_t)(j.y.ld * size) % pack == 0;

    return ptac_cuda_launch(
        &to_floats[place->dtype], place->call,
        n_across * ptac_parts(job->m, PTAC_DEQUANTIZE_ROWS), PTAC_QUANTIZED_THREADS,
        PTAC_PARAMETERS(&sums, &row_scales, &j.column_sums, &j.scales, &j.bias,
                        &j.y.data, &p, &is_wide));
}

/* The product of a call's rows, which are to lie in the workspace. */
static ptac_matmul product_of(const ptac_lt_place *place,
                              const ptac_quantized_linear *job, const room *r)
{
    const int64_t n = ptac_quantized_padded(job->n), k = ptac_quantized_padded(job->k);

    return (ptac_matmul){
        .m = job->m,
        .n = n,
        .k = k,
        .a = {r->q, k},
        .b = {(void *)job->weight, k},
        .d = {r->sums, n},
        .b_is_transposed = true,
        .type = PTAC_LT_R_8I,
        .d_type = PTAC_LT_R_32I,
        .compute = PTAC_LT_COMPUTE_32I,
        .epilogue = PTAC_LT_EPI_NONE,
        .device = place->device,
        .only_known = place->only_known,
    };
}

/* Where the library has no plan: one that it may not be asked for, or none at all. */
static ptac_status without_plan(const ptac_lt_place *place)
{
    return place->only_known ? PTAC_NOT_YET : PTAC_UNSUPPORTED;
}

static ptac_status plan_int8(const ptac_lt_place *place,
                             const ptac_quantized_linear *job, room *r,
                             ptac_matmul *product, ptac_lt_plan *plan)
{
    const size_t needed = ptac_int8_linear_cuda_bytes(job->m, job->n, job->k);

    if (place->workspace.bytes < needed)
        return PTAC_NO_MEMORY;
    *r = divide(place, job, needed);
    *product = product_of(place, job, r);
    return ptac_lt_plan_for(product, &r->rest, plan) ? PTAC_OK : without_plan(place);
}

ptac_status ptac_int8_linear_cuda_plan(const ptac_lt_place *place,
                                       const ptac_quantized_linear *job)
{
    room r;
    ptac_matmul product;
    ptac_lt_plan plan;

    return plan_int8(place, job, &r, &product, &plan);
}

ptac_status ptac_int8_linear_cuda(const ptac_lt_place *place,
                                  const ptac_quantized_linear *job)
{
    room r;
    ptac_matmul product;
    ptac_lt_plan plan;
    ptac_status status = plan_int8(place, job, &r, &product, &plan);

    if (status == PTAC_OK)
        status = quantize(place, job, &r, false);
    if (status == PTAC_OK)
        status = ptac_lt_run(&product, &plan, &r.rest, place->call->stream);
    return status == PTAC_OK ? dequantize(place, job, &r) : status;
}

/* behind: the place with what the rows leave of the workspace. */
static ptac_status plan_fp8(const ptac_lt_place *place,
                            const ptac_quantized_linear *job, room *r,
                            ptac_lt_place *behind, ptac_lt_step *step)
{
    const size_t needed = ptac_fp8_linear_cuda_bytes(job->m, job->k);
    const int64_t k = ptac_quantized_padded(job->k);

    if (place->workspace.bytes < needed)
        return PTAC_NO_MEMORY;
    *r = divide(place, job, needed);

    const ptac_lt_forward layer = {
        .m = job->m,
        .n = job->n,
        .k = k,
        .x = {r->q, k},
        .w = {(void *)job->weight, k},
        .y = job->y,
        .bias = (void *)job->bias,
        .act = job->act,
        .x_scales = r->scales,
        .w_scales = job->scales,
    };

    *behind = *place;
    behind->workspace = r->rest;
    return ptac_lt_plan_forward(behind, &layer, step) ? PTAC_OK : without_plan(place);
}

ptac_status ptac_fp8_linear_cuda_plan(const ptac_lt_place *place,
                                      const ptac_quantized_linear *job)
{
    room r;
    ptac_lt_place behind;
    ptac_lt_step step;

    return plan_fp8(place, job, &r, &behind, &step);
}

ptac_status ptac_fp8_linear_cuda(const ptac_lt_place *place,
                                 const ptac_quantized_linear *job)
{
    room r;
    ptac_lt_place behind;
    ptac_lt_step step;
    ptac_status status = plan_fp8(place, job, &r, &behind, &step);

    if (status == PTAC_OK)
        status = quantize(place, job, &r, true);
    return status == PTAC_OK ? ptac_lt_step_run(&behind, &step) : status;
}
