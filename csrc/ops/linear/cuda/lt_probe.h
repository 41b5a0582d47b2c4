/*
 * lt_probe.h - whether cuBLASLt has a product with an epilogue, asked without data.
 *
 * For the table of what a device's library supports, which benchmarks/gpu prints.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_LT_PROBE_H
#define PTAC_OPS_LINEAR_CUDA_LT_PROBE_H

#include "ops/linear/cuda/lt_matmul.h"

/*
 * Asks the heuristic, as a layer would, of D [m, n] = op(A) [m, k] op(B) [k, n]: by a
 * weight [n, k] forward, by one [k, n] through the activation, by an A [k, m] for the
 * gradient of a weight. Rows lie without gaps, and addresses are multiples of alignment
 * bytes and of no more. With the largest workspace. Nothing is read, written or
 * launched. False too where the device was not opened or the dtype has no products.
 */
bool ptac_lt_probe(int device, ptac_dtype dtype, bool is_tf32, int epilogue, int64_t m,
                   int64_t n, int64_t k, int alignment);

#endif
