/*
 * gemm.c - products through torch's shims, whole or in pieces.
 */
#include "bind/torch/rows/gemm.h"

#include "bind/torch/rows/gemm_bf16.h"

#include <string.h>

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
    at_error error = part_of(a, 0, a->sizes[0], begin, n, &part);
    stable_ivalue stack[2] = {0, AT_MEMORY_FORMAT_CONTIGUOUS};

    if (error || n == a->sizes[1] || a->strides[0] == 1) {
        *columns = error ? NULL : at_give(&part);
        return error;
    }
    stack[0] = (stable_ivalue)(uintptr_t)at_give(&part);
    error =
        T.torch_call_dispatcher("aten::contiguous", "", stack, PTAC_TORCH_ABI_VERSION);
    *columns = error ? NULL : at_take_tensor(stack, 0);
    return error;
}

/* Rows [first, first + m) of the product, over terms [begin, begin + n), onto *sum. */
static at_error add_terms(const ptac_matrix *a, const ptac_matrix *b, int64_t first,
                          int64_t m, int64_t begin, int64_t n, at_tensor bias,
                          at_tensor *sum)
{
    AT_OWNED at_tensor left = NULL, right = NULL;
    at_tensor longer = NULL;
    at_error error = part_of(a, first, m, begin, n, &left);

    if (!error)
        error = dense_columns(b, begin, n, &right);
    if (!error)
        error = onednn_terms(left, right, bias, *sum, &longer);
    if (!error) {
        at_drop_tensor(sum);
        *sum = longer;
    }
    return error;
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
    at_error error = 0;

    for (int64_t begin = 0; begin < n_terms && !error; begin += piece) {
        const int64_t rest = n_terms - begin;

        error = add_terms(a, b, first, m, begin, rest < piece ? rest : piece,
                          begin ? NULL : bias, &sum);
    }
    if (!error)
        *out = at_give(&sum);
    return error;
}

static float *data_of(at_tensor tensor)
{
    void *data = NULL;

    T.aoti_torch_get_data_ptr(tensor, &data);
    return data;
}

/* The same put into rows of out. */
static at_error onednn_rows_into(const ptac_matrix *a, const ptac_matrix *b,
                                 int64_t first, int64_t m, at_tensor out)
{
    AT_OWNED at_tensor rows = NULL;
    const int64_t n = b->sizes[0];
    const at_error error = onednn_rows(a, b, first, m, NULL, &rows);

    if (!error)
        memcpy(data_of(out) + first * n, data_of(rows),
               (size_t)(m * n) * sizeof(float));
    return error;
}

at_error ptac_gemm_blas_rows(const ptac_matrix *a, const ptac_matrix *b, int64_t first,
                             int64_t m, at_tensor out)
{
    const ptac_matrix columns = ptac_transposed(*b);
    const ptac_matrix target = {out, 0, {a->sizes[0], b->sizes[0]}, {b->sizes[0], 1}};
    AT_OWNED at_tensor left = NULL, right = NULL, rows = NULL;
    at_error error = part_of(a, first, m, 0, a->sizes[1], &left);

    if (!error)
        error = part_of(&columns, 0, columns.sizes[0], 0, columns.sizes[1], &right);
    if (!error)
        error = part_of(&target, first, m, 0, b->sizes[0], &rows);
    return error ? error : T.aoti_torch_cpu_mm_out(rows, left, right);
}

at_error ptac_gemm_rows(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                        at_tensor bias, at_tensor *out, bool *has_bias)
{
    const int64_t m = a->sizes[0];
    const bool can = provider == PTAC_GEMM_ONEDNN && is_dense(b);
    AT_OWNED at_tensor made = NULL;
    at_error error;
    int64_t first = 0;

    *has_bias = can && next_piece(m) == m;
    if (provider == PTAC_GEMM_BF16)
        return ptac_gemm_bf16(a, b, out);
    if (*has_bias)
        return onednn_rows(a, b, 0, m, bias, out);
    error = ptac_new_matrix(m, b->sizes[0], &made);
    while (!error && can && next_piece(m - first)) {
        const int64_t n = next_piece(m - first);

        error = onednn_rows_into(a, b, first, n, made);
        first += n;
    }
    if (!error && first < m)
        error = ptac_gemm_blas_rows(a, b, first, m - first, made);
    if (!error)
        *out = at_give(&made);
    return error;
}

/* out += a b^T over the terms from first on, by BLAS; = where first is 0. */
static at_error blas_terms(const ptac_matrix *a, const ptac_matrix *b, int64_t first,
                           at_tensor out)
{
    const ptac_matrix columns = ptac_transposed(*b);
    const int64_t n = a->sizes[1] - first;
    AT_OWNED at_tensor left = NULL, right = NULL;
    at_error error = part_of(a, 0, a->sizes[0], first, n, &left);

    if (!error)
        error = part_of(&columns, first, n, 0, columns.sizes[1], &right);
    if (error)
        return error;
    return first == 0 ? T.aoti_torch_cpu_mm_out(out, left, right)
                      : T.aoti_torch_cpu_addmm_out(out, out, left, right, 1, 1);
}

at_error ptac_gemm_sum(ptac_gemm provider, const ptac_matrix *a, const ptac_matrix *b,
                       at_tensor *out)
{
    const int64_t n_terms = a->sizes[1];
    AT_OWNED at_tensor sum = NULL;
    at_error error = 0;
    int64_t first = 0;

    if (provider == PTAC_GEMM_BF16)
        return ptac_gemm_bf16(a, b, out);
    while (!error && provider == PTAC_GEMM_ONEDNN && is_dense(b) &&
           next_piece(n_terms - first)) {
        int64_t n = next_piece(n_terms - first);

        n = n < PTAC_GEMM_TERMS ? n : PTAC_GEMM_TERMS;
        error = add_terms(a, b, 0, a->sizes[0], first, n, NULL, &sum);
        first += n;
    }
    if (!error && !sum)
        error = ptac_new_matrix(a->sizes[0], b->sizes[0], &sum);
    if (!error && first < n_terms)
        error = blas_terms(a, b, first, sum);
    if (!error)
        *out = at_give(&sum);
    return error;
}
