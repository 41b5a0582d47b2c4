/*
 * product.h - the operators mm, y = a b, and addmm, y = a b + bias, the same of many
 * matrices, bmm and baddbmm, and products for layers. Level close.
 *
 * For products that have few rows or are of odd sizes; at large ones libraries are as
 * good on some CPUs, and tables tell on which. Matrices are of float32 and lie as they
 * lie. Nothing is kept from one call to the next, so that nothing can go stale, but
 * weights that a caller promises to leave as they are. There are five ways:
 *
 *   dot      lanes are neighbouring terms. Rows of a and columns of b are read where
 *            they lie and added up in lanes. For few rows, or few columns.
 *   stream   lanes are neighbouring columns. Rows of b are read where they lie, one
 *            after the other. For up to eight rows.
 *   packed   the same lanes. Panels of b, of as many terms as fit into the first
 *            cache, are laid out there, which pays from some rows on.
 *   turned   lanes are neighbouring rows of a, which are laid out. Columns of b are
 *            read where they lie, once. For some tens of rows.
 *   small    dot or packed, as the sizes say. For products that are small or thin, of
 *            which stock's time is that of its call.
 *
 * In the first four the terms of an element are added in an order that the number of
 * terms alone decides: results depend neither on threads nor on other rows. Which one a
 * small product is, and so its order, may depend on the number of rows and columns.
 */
#ifndef PTAC_OPS_PRODUCT_PRODUCT_H
#define PTAC_OPS_PRODUCT_PRODUCT_H

#include "core/kernel.h"

/*
 * y = alpha a b + beta bias. One stride of a and one of b is 1, and rows of y and bias
 * have no gaps between elements.
 */
typedef struct ptac_product {
    int64_t m, n, k; /* y is [m, n], and its sums have k terms */
    const float *a, *b;
    int64_t a_row, a_term, b_term, b_column; /* strides */
    float alpha, beta;
    const float *bias; /* [m, n], or NULL */
    int64_t bias_row;  /* 0: the same for all rows */
    float *y;
    int64_t y_row;
    ptac_kept *kept; /* of a b that stays as it is, for "packed" alone; or NULL */
} ptac_product;

/* params of baddbmm; of others both are 1. */
typedef struct ptac_product_factors {
    float alpha, beta; /* alpha is not 0; where beta is, nobody reads bias */
} ptac_product_factors;

/* params of an mm that comes from Python and has not passed torch's dispatcher. */
extern const char ptac_product_is_lean;

enum {
    PTAC_PRODUCT_WORK = 1 << 18, /* multiply-adds that are worth a thread */
    PTAC_STREAM_ROWS = 8,
    PTAC_TURNED_LEAST_ROWS = 16, /* of fewer libraries' sums are more accurate */
    PTAC_TURNED_ROWS = 256,
    PTAC_TURNED_FLOATS = 1 << 21, /* that are turned, at most */
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
    PTAC_PRODUCT_STREAM,
    PTAC_PRODUCT_TURNED,
    PTAC_PRODUCT_SMALL,
    PTAC_N_PRODUCT_WAYS,
};

#if defined(__x86_64__)
extern const ptac_product_way ptac_products_avx2[PTAC_N_PRODUCT_WAYS];
extern const ptac_product_way ptac_products_avx512[PTAC_N_PRODUCT_WAYS];
#endif

/*
 * The products of a call: inputs a [m, k] and b [k, n], of addmm bias [n]; output y.
 * Those of bmm and baddbmm have a dimension more, the first, and bias any sizes that
 * broadcast to y's. The first one, and how far apart the others are.
 */
typedef struct ptac_product_batch {
    int64_t n;
    ptac_product first;
    int64_t a, b, bias, y;
} ptac_product_batch;

ptac_product_batch ptac_product_batch_of(const ptac_call *call);

/* Each by this way. PTAC_FAILED without memory; what is in y then is nobody's. */
ptac_status ptac_product_batch_run(const ptac_product_batch *all,
                                   const ptac_product_way *way);

/*
 * Bytes of all panels of b, as "packed" lays them out for vectors of so many lanes:
 * what ptac_product.kept has room for.
 */
size_t ptac_product_kept_bytes(int64_t n, int64_t k, int n_lanes);

/* A product of little work; and one of more, whose few columns fill no vector. */
bool ptac_product_is_small(int64_t m, int64_t n, int64_t k);
bool ptac_product_is_thin(int64_t m, int64_t n, int64_t k);
/* Of a small or thin one: whether dot is the way. */
bool ptac_product_small_is_dot(const ptac_product *product);

ptac_reason ptac_product_accepts_dot(const ptac_product *product);
ptac_reason ptac_product_accepts_packed(const ptac_product *product);
ptac_reason ptac_product_accepts_stream(const ptac_product *product);
ptac_reason ptac_product_accepts_turned(const ptac_product *product);
/*
 * Whether so many rows are one panel, whose last vector of lanes they fill, or nearly:
 * of several, libraries were faster.
 */
bool ptac_product_turned_pays(int64_t m, int n_lanes);
/*
 * Whether columns that are laid out first, since their terms lie side by side, are
 * added up at once, or are so many that threads share them: else libraries were faster,
 * but on CPUs of AMD's, where their tables tell.
 */
bool ptac_product_packed_pays(int64_t n, int64_t k, int n_threads);

/*
 * Not where it would be "dot" and, on AMD's Zen 4, "packed" is faster: of many rows, if
 * there is some work.
 */
bool ptac_product_small_pays(const ptac_product *p);

#endif
