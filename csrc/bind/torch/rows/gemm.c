/*
 * gemm.c - products through torch's shims, whole or in pieces, also of operands
 * that are rounded to bfloat16.
 */
#include "bind/torch/rows/gemm.h"

#include "bind/torch/rows/bf16.h"
#include "ops/bf16/cast.h"
#include "ops/product/product.h"

#include <string.h>

bool ptac_products_are_lowered(void)
{
    int precision;

    if (!T.global_context || !T.float32_precision)
        return false;
    precision =
        T.float32_precision(T.global_context(), AT_FLOAT32_MKLDNN, AT_FLOAT32_MATMUL);
    return precision == AT_FLOAT32_BF16 ||
           (precision == AT_FLOAT32_TF32 && ptac_cpu_features() & PTAC_CPU_AMX_FP16);
}

/* Our own way for a provider; NULL where it is none. */
static const ptac_product_way *own_way(ptac_gemm provider)
{
#if defined(__x86_64__)
    switch (provider) {
    case PTAC_GEMM_DOT_AVX2:
        return &ptac_products_avx2[PTAC_PRODUCT_DOT];
    case PTAC_GEMM_DOT_AVX512:
        return &ptac_products_avx512[PTAC_PRODUCT_DOT];
    case PTAC_GEMM_PACKED_AVX2:
        return &ptac_products_avx2[PTAC_PRODUCT_PACKED];
    case PTAC_GEMM_PACKED_AVX512:
        return &ptac_products_avx512[PTAC_PRODUCT_PACKED];
    case PTAC_GEMM_TURNED_AVX2:
        return &ptac_products_avx2[PTAC_PRODUCT_TURNED];
    case PTAC_GEMM_TURNED_AVX512:
        return &ptac_products_avx512[PTAC_PRODUCT_TURNED];
    case PTAC_GEMM_SMALL_AVX2:
        return &ptac_products_avx2[PTAC_PRODUCT_SMALL];
    case PTAC_GEMM_SMALL_AVX512:
        return &ptac_products_avx512[PTAC_PRODUCT_SMALL];
    default:
        break;
    }
#endif
    (void)provider;
    return NULL;
}

bool ptac_gemm_can(ptac_gemm provider)
{
    return provider != PTAC_GEMM_ONEDNN || (T.aoti_torch_cpu__linear_pointwise &&
                                            T.aoti_torch_cpu__linear_pointwise_binary);
}

/* Rows [row, row + m) and columns [column, column + n) as a tensor of their own. */
static at_error part_of(const ptac_matrix *a, int64_t row, int64_t m, int64_t column,
                        int64_t n, at_tensor *part)
{
    const int64_t sizes[2] = {m, n};

    return T.aoti_torch__reinterpret_tensor(
        a->tensor, 2, sizes, a->strides,
        a->offset + row * a->strides[0] + column * a->strides[1], part);
}

/* The largest power of two that fits, or 0 when that is less than a piece. */
static int64_t next_piece(int64_t rest)
{
    int64_t piece = PTAC_GEMM_PIECE;

    if (rest < piece)
        return 0;
    while (2 * piece <= rest)
        piece *= 2;
    return piece;
}

/* A piece of the summed dimension by oneDNN, added to what came before, if anything. */
static at_error onednn_terms(at_tensor a, at_tensor b, at_tensor bias, at_tensor before,
                             at_tensor *out)
{
    if (before)
        return T.aoti_torch_cpu__linear_pointwise_binary(a, before, b, NULL, "add",
                                                         out);
    return T.aoti_torch_cpu__linear_pointwise(a, b, bias ? &bias : NULL, "none", NULL,
                                              0, NULL, out);
}

/* Rows or columns one behind the other, without gaps. */
static bool is_dense(const ptac_matrix *a)
{
    const int64_t *size = a->sizes, *stride = a->strides;

    return (stride[1] == 1 && (stride[0] == size[1] || size[0] == 1)) ||
           (stride[0] == 1 && (stride[1] == size[0] || size[1] == 1));
}

/* Columns [begin, begin + n) without gaps: the memory itself, or a copy. */
static at_error dense_columns(const ptac_matrix *a, int64_t begin, int64_t n,
                              at_tensor *columns)
{
    AT_OWNED at_tensor part = NULL;

    if (part_of(a, 0, a->sizes[0], begin, n, &part))
        return 1;
    if (n < a->sizes[1] && a->strides[0] != 1)
        return at_contiguous(at_give(&part), false, columns);
    *columns = at_give(&part);
    return 0;
}

/* Rows [first, first + m) of the product, over terms [begin, begin + n), onto *sum. */
static at_error add_terms(const ptac_matrix *a, const ptac_matrix *b, int64_t first,
                          int64_t m, int64_t begin, int64_t n, at_tensor bias,
                          at_tensor *sum)
{
    AT_OWNED at_tensor left = NULL, right = NULL;
    at_tensor longer = NULL;

    if (part_of(a, first, m, begin, n, &left) || dense_columns(b, begin, n, &right) ||
        onednn_terms(left, right, bias, *sum, &longer))
        return 1;
    at_drop_tensor(sum);
    *sum = longer;
    return 0;
}

/* How many pieces keep a sum of this many terms as exact as BLAS's. */
static int64_t n_sums(int64_t n_terms)
{
    if (n_terms >= PTAC_GEMM_MANY_TERMS)
        return 1;
    return (n_terms + PTAC_GEMM_TERMS - 1) / PTAC_GEMM_TERMS;
}

/* Rows [first, first + m) of the product by oneDNN, in a tensor of its own. */
static at_error onednn_rows(const ptac_matrix *a, const ptac_matrix *b, int64_t first,
                            int64_t m, at_tensor bias, at_tensor *out)
{
    const int64_t n_terms = a->sizes[1], n_pieces = n_sums(n_terms);
    const int64_t piece = (n_terms + n_pieces - 1) / n_pieces;
    AT_OWNED at_tensor sum = NULL;

    for (int64_t begin = 0; begin < n_terms; begin += piece) {
        const int64_t rest = n_terms - begin;

        if (add_terms(a, b, first, m, begin, rest < piece ? rest : piece,
                      begin ? NULL : bias, &sum))
            return 1;
    }
    *out = at_give(&sum);
    return 0;
}

/* The same put into rows of out. */
static at_error onednn_rows_into(const ptac_matrix *a, const ptac_matrix *b,
                                 int64_t first, int64_t m, at_tensor out)
{
    AT_OWNED at_tensor rows = NULL;
    const int64_t n = b->sizes[0];

    if (onednn_rows(a, b, first, m, NULL, &rows))
        return 1;
    memcpy((float *)at_data(out) + first * n, at_data(rows),
           (size_t)(m * n) * sizeof(float));
    return 0;
}

/* Rows from row on of out: = a b^T by BLAS, or += the terms from term on. */
static at_error blas(const ptac_matrix *a, const ptac_matrix *b, int64_t row,
                     int64_t term, at_tensor out)
{
    const int64_t m = a->sizes[0] - row, k = a->sizes[1] - term, n = b->sizes[0];
    const ptac_matrix columns = ptac_transposed(*b);
    const ptac_matrix target = {out, 0, {a->sizes[0], n}, {n, 1}};
    AT_OWNED at_tensor left = NULL, right = NULL, rows = NULL;

    if (part_of(a, row, m, term, k, &left) || part_of(&columns, term, k, 0, n, &right))
        return 1;
    if (term > 0)
        return T.aoti_torch_cpu_addmm_out(out, out, left, right, 1, 1);
    if (row == 0)
        return T.aoti_torch_cpu_mm_out(out, left, right);
    return part_of(&target, row, m, 0, n, &rows) ||
           T.aoti_torch_cpu_mm_out(rows, left, right);
}

/* The matrix in bfloat16 with n_terms columns, in *owner unless it is that already. */
static at_error narrow(const ptac_matrix *a, int64_t n_terms, at_tensor *owner,
                       ptac_matrix *made)
{
    ptac_bf16_matrix from = {
        NULL, {a->sizes[0], a->sizes[1]}, {a->strides[0], a->strides[1]}, 1};
    int32_t dtype = -1;

    if (T.aoti_torch_get_dtype(a->tensor, &dtype))
        return 1;
    *made = *a;
    if (dtype == AT_DTYPE_BF16)
        return 0;
    from.data = (const float *)at_data(a->tensor) + a->offset;
    made->offset = 0;
    made->sizes[1] = n_terms;
    if (ptac_bf16_copy(&from, n_terms, owner, made->strides))
        return 1;
    made->tensor = *owner;
    return 0;
}

at_error ptac_gemm_narrow(const ptac_matrix *a, at_tensor *owner, ptac_matrix *made)
{
    const ptac_matrix from = *a; /* made may be a itself */

    if (from.sizes[0] == 1 ||
        ptac_bf16_terms(from.sizes, from.strides) != from.sizes[1])
        return 0;
    return narrow(&from, from.sizes[1], owner, made);
}

static at_error all_of(const ptac_matrix *a, at_tensor *tensor)
{
    return part_of(a, 0, a->sizes[0], 0, a->sizes[1], tensor);
}

/* *out = a b^T, where a and b may be rounded already. */
static at_error bf16_product(const ptac_matrix *a, const ptac_matrix *b, at_tensor *out)
{
    const int64_t sizes[2] = {a->sizes[0], b->sizes[0]};
    AT_OWNED at_tensor a_owner = NULL, b_owner = NULL, left = NULL, right = NULL;
    AT_OWNED at_tensor product = NULL;
    const int64_t n_terms = ptac_bf16_terms(a->sizes, a->strides);
    ptac_matrix a16, b16;

    if (narrow(a, n_terms, &a_owner, &a16) || narrow(b, n_terms, &b_owner, &b16))
        return 1;
    b16 = ptac_transposed(b16);
    return all_of(&a16, &left) || all_of(&b16, &right) ||
           ptac_new(PTAC_BF16, 2, sizes, NULL, &product, NULL) ||
           T.aoti_torch_cpu_mm_out(product, left, right) ||
           ptac_bf16_widened(product, out) != PTAC_OK;
}

static const float *data_of(const ptac_matrix *a)
{
    return (const float *)at_data(a->tensor) + a->offset;
}

/* Where a product of m x n is written: a handle of its own of that, or a new matrix. */
static at_error make_room(at_tensor into, int64_t m, int64_t n, at_tensor *made)
{
    if (!into)
        return ptac_new_matrix(m, n, made, NULL);
    *made = at_share(into);
    return *made == NULL;
}

/* The product by our own way; *out stays NULL where it cannot. */
static at_error own_product(const ptac_product_way *way, const ptac_matrix *a,
                            const ptac_matrix *b, at_tensor bias, at_tensor into,
                            ptac_kept *kept, at_tensor *out)
{
    AT_OWNED at_tensor made = NULL;
    ptac_product p = {
        .kept = kept,
        .m = a->sizes[0],
        .n = b->sizes[0],
        .k = a->sizes[1],
        .a = data_of(a),
        .b = data_of(b),
        .a_row = a->strides[0],
        .a_term = a->strides[1],
        .b_term = b->strides[1],
        .b_column = b->strides[0],
        .alpha = 1,
        .beta = 1,
        .bias = at_data(bias),
        .y_row = b->sizes[0],
    };

    if (way->accepts(&p))
        return 0;
    if (make_room(into, p.m, p.n, &made))
        return 1;
    p.y = at_data(made);
    if (!way->run(&p))
        *out = at_give(&made);
    return 0;
}

at_error ptac_gemm_rows(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                        at_tensor bias, at_tensor *out, bool *has_bias)
{
    return ptac_gemm_rows_into(provider, a, b, bias, NULL, NULL, out, has_bias);
}

at_error ptac_gemm_rows_into(ptac_gemm provider, const ptac_matrix *a,
                             const ptac_matrix *b, at_tensor bias, at_tensor into,
                             ptac_kept *kept, at_tensor *out, bool *has_bias)
{
    const int64_t m = a->sizes[0];
    const bool can = provider == PTAC_GEMM_ONEDNN && is_dense(b);
    const ptac_product_way *way = own_way(provider);
    AT_OWNED at_tensor made = NULL;
    int64_t first = 0;

    *out = NULL;
    *has_bias = true;
    if (way && own_product(way, a, b, bias, into, kept, out))
        return 1;
    if (*out)
        return 0;
    *has_bias = can && next_piece(m) == m;
    if (provider == PTAC_GEMM_BF16)
        return bf16_product(a, b, out);
    if (*has_bias)
        return onednn_rows(a, b, 0, m, bias, out);
    if (make_room(can ? NULL : into, m, b->sizes[0], &made))
        return 1;
    for (int64_t n; can && (n = next_piece(m - first)) > 0; first += n)
        if (onednn_rows_into(a, b, first, n, made))
            return 1;
    if (first < m && blas(a, b, first, 0, made))
        return 1;
    *out = at_give(&made);
    return 0;
}

at_error ptac_gemm_sum(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                       at_tensor *out)
{
    const int64_t n_terms = a->sizes[1];
    const bool can = provider == PTAC_GEMM_ONEDNN && is_dense(b);
    const ptac_product_way *way = own_way(provider);
    AT_OWNED at_tensor sum = NULL;
    int64_t first = 0;

    *out = NULL;
    if (way && own_product(way, a, b, NULL, NULL, NULL, out))
        return 1;
    if (*out)
        return 0;
    if (provider == PTAC_GEMM_BF16)
        return bf16_product(a, b, out);
    for (int64_t n; can && (n = next_piece(n_terms - first)) > 0; first += n) {
        n = n < PTAC_GEMM_TERMS ? n : PTAC_GEMM_TERMS;
        if (add_terms(a, b, 0, a->sizes[0], first, n, NULL, &sum))
            return 1;
    }
    if ((!sum && ptac_new_matrix(a->sizes[0], b->sizes[0], &sum, NULL)) ||
        (first < n_terms && blas(a, b, 0, first, sum)))
        return 1;
    *out = at_give(&sum);
    return 0;
}
