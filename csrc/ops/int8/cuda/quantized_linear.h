/*
 * quantized_linear.h - y = act(x w^T + bias) on CUDA, of weights in int8 or fp8.
 *
 * Activations are quantized in the call, a scale for each row; weights were before, a
 * scale for each output channel. A row of x with NaN or infinity gives NaN in all of
 * its outputs. Not rows of an operator: rows of int8_linear take packed weights, these
 * plain ones, and who calls has quantized the weights.
 *
 * int8: the numbers are those of int8_linear on the CPU. x is scale * (q - zero) with q
 * in 0..255, and y = act(fma(float(sum), row scale * column scale, bias)) where the sum
 * is an exact int32. Equal bits for float32 x of two rows or more, except where the
 * activation calls a function; the CPU gives a single row 16 bits.
 *
 * fp8: e4m3, compute capability 9.0 and cuBLAS 12.9 (scales by row work nowhere else),
 * sums in float, in the library's order.
 */
#ifndef PTAC_OPS_INT8_CUDA_QUANTIZED_LINEAR_H
#define PTAC_OPS_INT8_CUDA_QUANTIZED_LINEAR_H

#include "ops/linear/cuda/lt_step.h"

enum {
    PTAC_QUANTIZED_PAD = 16, /* of a weight's rows and columns */
};

/*
 * x [m, k] and y [m, n] have the place's dtype, and bias [n], which may be NULL. weight
 * is [n', k'], n' and k' being n and k as multiples of PTAC_QUANTIZED_PAD, filled up
 * with zeros, dense and aligned to 16; int8, or e4m3 for fp8. scales is [n].
 * column_sums, of int8 only, is [n]: the sums over each row of weight.
 */
typedef struct ptac_quantized_linear {
    int64_t m, n, k;
    ptac_act act;
    ptac_lt_matrix x, y;
    const void *weight, *bias;
    const float *scales;
    const int32_t *column_sums;
} ptac_quantized_linear;

/* n as such a multiple. */
static inline int64_t ptac_quantized_padded(int64_t n)
{
    return ptac_parts(n, PTAC_QUANTIZED_PAD) * PTAC_QUANTIZED_PAD;
}

/*
 * PTAC_TAKE, or why not; PTAC_DEVICE where the device cannot. Writes nothing. fp8 wants
 * an n that is such a multiple: y has the columns that the product has.
 */
ptac_reason ptac_int8_linear_cuda_accepts(const ptac_lt_place *place,
                                          const ptac_quantized_linear *job);
ptac_reason ptac_fp8_linear_cuda_accepts(const ptac_lt_place *place,
                                         const ptac_quantized_linear *job);

/*
 * PTAC_UNSUPPORTED or PTAC_NO_MEMORY before the first write, where the library refuses
 * or the workspace has fewer than the bytes below; PTAC_NOT_YET where only what has
 * been planned may run. What a call says before it writes, its plan says alone.
 */
ptac_status ptac_int8_linear_cuda(const ptac_lt_place *place,
                                  const ptac_quantized_linear *job);
ptac_status ptac_int8_linear_cuda_plan(const ptac_lt_place *place,
                                       const ptac_quantized_linear *job);
ptac_status ptac_fp8_linear_cuda(const ptac_lt_place *place,
                                 const ptac_quantized_linear *job);
ptac_status ptac_fp8_linear_cuda_plan(const ptac_lt_place *place,
                                      const ptac_quantized_linear *job);

/* Bytes that are needed; PTAC_LT_WORKSPACE_BYTES more make the product fast. */
size_t ptac_int8_linear_cuda_bytes(int64_t m, int64_t n, int64_t k);
size_t ptac_fp8_linear_cuda_bytes(int64_t m, int64_t k);

#endif
