/*
 * quantized_linear_cuda.h - int8_linear and fp8_linear of handles on a CUDA device.
 *
 * Kernels and product are those of ops/int8/cuda. Here is what they have to be given:
 * output and workspace by torch's allocator, cuBLASLt and its handle. Rows of int8 are
 * taken in parts, so that the sums of no call need more than a fixed memory.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CUDA_QUANTIZED_LINEAR_CUDA_H
#define PTAC_BIND_TORCH_ROWS_CUDA_QUANTIZED_LINEAR_CUDA_H

#include "bind/torch/bridge.h"
#include "ops/int8/cuda/quantized_linear.h"

/* A call. It points into itself: it stays where it was read. */
typedef struct ptac_quantized_on_cuda {
    const struct ptac_linear_format *format;
    /* Borrowed. bias has x's dtype, or is NULL. */
    at_tensor x, weight, scales, bias;
    at_tensor y; /* owned, once the call has run */
    int n_dims;  /* of y, whose sizes are: */
    int64_t sizes[PTAC_MAX_DIMS];
    at_tensor copy; /* owned: of x, where its rows lie at no single distance */
    ptac_quantized_linear job;
    ptac_lt_place place;
    ptac_call call;
} ptac_quantized_on_cuda;

/* What is particular about a format of weights. */
typedef struct ptac_linear_format {
    ptac_op op;
    /* The weight's place in the job; PTAC_ARGUMENT where it is none of this format. */
    ptac_reason (*read_weight)(ptac_quantized_on_cuda *c, const ptac_view *weight);
    int64_t (*rows_at_once)(const ptac_quantized_linear *job);
    /* Of rows_at_once(). */
    size_t (*bytes)(const ptac_quantized_linear *job);
    ptac_reason (*accepts)(const ptac_lt_place *place,
                           const ptac_quantized_linear *job);
    ptac_status (*plan)(const ptac_lt_place *place, const ptac_quantized_linear *job);
    ptac_status (*run)(const ptac_lt_place *place, const ptac_quantized_linear *job);
} ptac_linear_format;

/*
 * int8: the weight is int8 [n' + s, k'], dense: as ops/int8/cuda wants it, and in the
 * last s rows, as few as can be, the int32 sums over each of its rows. fp8: it is e4m3
 * [n, k], dense, and n and k are multiples of PTAC_QUANTIZED_PAD.
 */
extern const ptac_linear_format ptac_int8_on_cuda, ptac_fp8_on_cuda;

/* Of the formats' rows, whose calls have params of ptac_quantized_on_cuda. */
ptac_reason ptac_quantized_accepts(const ptac_call *call);
ptac_status ptac_quantized_run(const ptac_call *call);

/*
 * Fill in the rest for the tensors of c, and a layer of n and k; or say why not. n * k
 * is countable (ops/int8/panel.h). Others may resize the tensors afterwards.
 */
ptac_reason ptac_quantized_on_cuda_read(ptac_quantized_on_cuda *c, int64_t n, int64_t k,
                                        ptac_act act);

/*
 * Of a call that was read: make y and run, and drop the copy. False where stock has to
 * do it, which is counted where counts, and always where the row failed.
 */
bool ptac_quantized_on_cuda_run(ptac_quantized_on_cuda *c, bool counts);

/* Bytes of int8's sums from which on calls come in parts, of 128 rows or more. */
void ptac_int8_on_cuda_set_most(int64_t bytes);

#endif
