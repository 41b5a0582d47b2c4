/*
 * products.h - how a call's products are computed on CUDA, and what they work in.
 */
#ifndef PTAC_OPS_LINEAR_PRODUCTS_H
#define PTAC_OPS_LINEAR_PRODUCTS_H

#include "core/base.h"

/* The workspace is aligned to PTAC_LT_WORKSPACE_ALIGNMENT. */
typedef struct ptac_products {
    bool allows_tf32; /* float32 may be multiplied with 10 bits of mantissa */
    bool only_known;  /* refuse products that have not been planned before */
    int device;
    void *workspace;
    size_t workspace_bytes;
} ptac_products;

static inline bool ptac_products_are_tf32(const ptac_products *products,
                                          ptac_dtype dtype)
{
    return dtype == PTAC_F32 && products->allows_tf32;
}

#endif
