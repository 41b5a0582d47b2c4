/*
 * products.h - how a call's products are computed on CUDA, and what they work in.
 */
#ifndef PTAC_OPS_LINEAR_PRODUCTS_H
#define PTAC_OPS_LINEAR_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>

/* The workspace is aligned to PTAC_LT_WORKSPACE_ALIGNMENT. */
typedef struct ptac_products {
    bool allows_tf32; /* float32 may be multiplied with 10 bits of mantissa */
    bool only_known;  /* refuse products that have not been planned before */
    int device;
    void *workspace;
    size_t workspace_bytes;
} ptac_products;

#endif
