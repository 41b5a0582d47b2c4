/*
 * cuda_products.h - what lean call paths to matrix products on CUDA ask before a call.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LINEAR_CUDA_PRODUCTS_H
#define PTAC_BIND_PYTHON_CALLPATH_LINEAR_CUDA_PRODUCTS_H

#include "bind/python/module/pybind.h"

/*
 * What torch's settings say of products of a dtype at the moment: PTAC_TAKE and whether
 * float32 may be multiplied as TF32; or why stock has to do them, which autocast, where
 * it is on, would have cast to another dtype.
 */
ptac_reason ptac_cuda_products(ptac_dtype dtype, bool *allows_tf32);

/* Why no call is served now, which the report should say before it speaks of sizes. */
ptac_reason ptac_cuda_why_shut(ptac_op op);

#endif
