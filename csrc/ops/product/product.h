/*
 * product.h - the operators mm, y = a b, and addmm, y = a b + bias, and products for
 * layers. Level close.
 *
 * For products that have few rows or are of odd sizes; libraries are as good at large
 * ones. Matrices are of float32 and lie as they lie: nothing is kept from one call to
 * the next, so that nothing can go stale. There are two ways:
 *
 *   dot      lanes are neighbouring terms. Rows of a and columns of b are read where
 *            they lie and added up in lanes. For few rows, or few columns.
 *   packed   lanes are neighbouring columns. Panels of b, of as many terms as fit into
 *            the first cache, are laid out there, which pays from some rows on.
 *
 * In both the terms of an element are added in an order that the number of terms alone
 * decides: results depend neither on threads nor on other rows.
 */
#ifndef PTAC_OPS_PRODUCT_PRODUCT_H
#define PTAC_OPS_PRODUCT_PRODUCT_H

#include "core/kernel.h"

/* One stride of a and one of b is 1, and rows of y have no gaps between elements. */
typedef struct ptac_product {
    int64_t m, n, k; /* y is [m, n], and its sums have k terms */
    const float *a, *b;
    int64_t a_row, a_term, b_term, b_column; /* strides */
    const float *bias;                       /* [n], or NULL */
    float *y;
    int64_t y_row;
} ptac_product;

enum {
    PTAC_PRODUCT_WORK = 1 << 18, /* multiply-adds that are worth a thread */
};

/* A way to compute them: PTAC_TAKE where it can, and what computes. */
typedef struct ptac_product_way {
    const char *name;
    ptac_reason (*accepts)(const ptac_product *product);
    /* PTAC_FAILED without memory, before the first write. */
    ptac_status (*run)(const ptac_product *product);
} ptac_product_way;

enum {
    PTAC_PRODUCT_DOT,
    PTAC_PRODUCT_PACKED,
    PTAC_N_PRODUCT_WAYS,
};

#if defined(__x86_64__)
extern const ptac_product_way ptac_products_avx2[PTAC_N_PRODUCT_WAYS];
extern const ptac_product_way ptac_products_avx512[PTAC_N_PRODUCT_WAYS];
#endif

/* The product of a call: inputs a [m, k], b [k, n], of addmm bias [n]; output y. */
ptac_product ptac_product_of(const ptac_call *call);

ptac_reason ptac_product_accepts_dot(const ptac_product *product);
ptac_reason ptac_product_accepts_packed(const ptac_product *product);

#endif
