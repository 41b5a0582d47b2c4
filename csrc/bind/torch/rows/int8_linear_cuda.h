/*
 * int8_linear_cuda.h - int8_linear of handles on a CUDA device.
 *
 * Kernels and product are those of ops/int8/cuda. Here is what they have to be given:
 * output and workspace by torch's allocator, cuBLASLt and its handle. Rows are taken in
 * parts, so that the sums of no call need more than a fixed memory.
 */
#ifndef PTAC_BIND_TORCH_ROWS_INT8_LINEAR_CUDA_H
#define PTAC_BIND_TORCH_ROWS_INT8_LINEAR_CUDA_H

#include "bind/torch/bridge.h"
#include "ops/int8/cuda/quantized_linear.h"

/* A call. It points into itself: it stays where it was read. */
typedef struct ptac_int8_on_cuda {
    /*
     * Borrowed. packed is int8 [n' + s, k'], dense: the weight as ops/int8/cuda wants
     * it, and in the last s rows, as few as can be, the int32 sums over each of its
     * rows. bias has x's dtype, or is NULL.
     */
    at_tensor x, packed, scales, bias;
    at_tensor y; /* owned, once the call has run */
    int n_dims;  /* of y, whose sizes are: */
    int64_t sizes[PTAC_MAX_DIMS];
    at_tensor copy; /* owned: of x, where its rows lie at no single distance */
    ptac_quantized_linear job;
    ptac_lt_place place;
    ptac_call call;
} ptac_int8_on_cuda;

/*
 * Fill in the rest for the tensors of c, and a layer of n and k; or say why not. n * k
 * is countable (ops/int8/panel.h). Others may resize the tensors afterwards.
 */
ptac_reason ptac_int8_on_cuda_read(ptac_int8_on_cuda *c, int64_t n, int64_t k,
                                   ptac_act act);

/*
 * Of a call that was read: make y and run, and drop the copy. False where stock has to
 * do it, which is counted where counts, and always where the row failed.
 */
bool ptac_int8_on_cuda_run(ptac_int8_on_cuda *c, bool counts);

/* Bytes of sums from which on calls are taken in parts, of 128 rows or more (tests). */
void ptac_int8_on_cuda_set_most(int64_t bytes);

#endif
