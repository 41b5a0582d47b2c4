/*
 * matrices.c - matrices, their exact products, and the emulated device.
 */
#include "matrices.h"

#include "emulated_lt.h"
#include "emulator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKSPACE_BYTES = 256 << 10,
};

tested_device the_device;
ptac_lt_workspace the_workspace;

static size_t bytes_of(ptac_dtype dtype)
{
    return dtype == PTAC_OTHER_DTYPE ? 1 : dtype == PTAC_F32 ? 4 : 2;
}

static size_t block_bytes(const matrix *m)
{
    return (size_t)(m->n_rows * m->ld) * bytes_of(m->dtype);
}

matrix matrix_new(ptac_dtype dtype, int64_t n_rows, int64_t n_cols, int64_t ld,
                  int64_t offset)
{
    matrix m = {dtype, n_rows, n_cols, ld, NULL, NULL};
    const size_t before = (size_t)offset * bytes_of(dtype);

    if (posix_memalign(&m.block, 256, block_bytes(&m) + before))
        abort();
    memset(m.block, NOISE, block_bytes(&m) + before);
    m.data = (char *)m.block + before;
    return m;
}

void matrix_drop(matrix *m)
{
    free(m->block);
    m->block = m->data = NULL;
}

double matrix_at(const matrix *m, int64_t i, int64_t j)
{
    const int64_t at = i * m->ld + j;

    return m->dtype == PTAC_F16 ? (double)((const _Float16 *)m->data)[at]
                                : real_at(m->dtype, m->data, at);
}

void matrix_put(matrix *m, int64_t i, int64_t j, double value)
{
    const int64_t at = i * m->ld + j;

    if (m->dtype == PTAC_F16)
        ((_Float16 *)m->data)[at] = (_Float16)value;
    else
        set_real(m->dtype, m->data, at, value);
}

void matrix_fill(rng *r, matrix *m, double step)
{
    for (int64_t i = 0; i < m->n_rows; i++)
        for (int64_t j = 0; j < m->n_cols; j++)
            matrix_put(m, i, j, step * (double)rng_between(r, -2, 2));
}

static bool is_noise(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != NOISE)
            return false;
    return true;
}

bool matrix_is_noise(const matrix *m)
{
    return is_noise(m->data, block_bytes(m));
}

bool matrix_has_clean_gaps(const matrix *m)
{
    const size_t size = bytes_of(m->dtype), ld = (size_t)m->ld * size;
    const size_t used = (size_t)m->n_cols * size;
    bool clean = true;

    for (int64_t i = 0; i < m->n_rows; i++)
        clean &= is_noise((unsigned char *)m->data + (size_t)i * ld + used, ld - used);
    return clean;
}

ptac_view view_of(const matrix *m, int n_dims, int64_t sizes[2], int64_t strides[2])
{
    ptac_view view = {.data = m->data, .sizes = sizes, .strides = strides};

    sizes[0] = n_dims == 2 ? m->n_rows : m->n_cols;
    strides[0] = n_dims == 2 ? m->ld : 1;
    sizes[1] = m->n_cols;
    strides[1] = 1;
    view.n_dims = n_dims;
    view.n_elements = m->n_rows * m->n_cols;
    view.dtype = m->dtype;
    return view;
}

exact exact_new(int64_t n_rows, int64_t n_cols)
{
    exact e = {n_rows, n_cols, calloc((size_t)(n_rows * n_cols), sizeof(double))};

    if (!e.at)
        abort();
    return e;
}

void exact_drop(exact *e)
{
    free(e->at);
    e->at = NULL;
}

exact exact_of(const matrix *m)
{
    exact e = exact_new(m->n_rows, m->n_cols);

    for (int64_t i = 0; i < m->n_rows; i++)
        for (int64_t j = 0; j < m->n_cols; j++)
            e.at[i * m->n_cols + j] = matrix_at(m, i, j);
    return e;
}

static double element(const exact *e, bool is_transposed, int64_t i, int64_t j)
{
    return is_transposed ? e->at[j * e->n_cols + i] : e->at[i * e->n_cols + j];
}

exact exact_product(const exact *a, bool a_is_transposed, const exact *b,
                    bool b_is_transposed, bool is_size)
{
    const int64_t n = b_is_transposed ? b->n_rows : b->n_cols;
    const int64_t k = a_is_transposed ? a->n_rows : a->n_cols;
    exact e = exact_new(a_is_transposed ? a->n_cols : a->n_rows, n);

    for (int64_t i = 0; i < e.n_rows; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++) {
                const double product = element(a, a_is_transposed, i, l) *
                                       element(b, b_is_transposed, l, j);

                e.at[i * n + j] += is_size ? fabs(product) : product;
            }
    return e;
}

double exact_act(double z, ptac_act act)
{
    switch (act) {
    case PTAC_ACT_RELU:
        return z < 0 ? 0 : z;
    case PTAC_ACT_GELU:
        return 0.5 * z * erfc(-z * M_SQRT1_2);
    case PTAC_ACT_GELU_TANH:
        return 0.5 * z * (1 + tanh(sqrt(M_2_PI) * (z + 0.044715 * z * z * z)));
    case PTAC_ACT_SILU:
        return z / (1 + exp(-z));
    case PTAC_ACT_TANH:
        return tanh(z);
    case PTAC_ACT_SIGMOID:
        return 1 / (1 + exp(-z));
    default:
        return z;
    }
}

/* A difference quotient would do for smooth ones; ReLU's is 0 at 0, as stock's is. */
double exact_slope(double z, ptac_act act)
{
    const double h = 0x1p-16;

    if (act == PTAC_ACT_NONE)
        return 1;
    if (act == PTAC_ACT_RELU)
        return z > 0;
    return (exact_act(z + h, act) - exact_act(z - h, act)) / (2 * h);
}

double roundoff(ptac_dtype dtype)
{
    return dtype == PTAC_F32 ? 0x1p-24 : dtype == PTAC_F16 ? 0x1p-11 : 0x1p-8 / 2;
}

bool matrix_is_near(const matrix *m, const exact *expected, const exact *size,
                    double roundings, const char *name)
{
    for (int64_t i = 0; i < m->n_rows; i++)
        for (int64_t j = 0; j < m->n_cols; j++) {
            const int64_t at = i * m->n_cols + j;
            const double scale = size ? fmax(1, size->at[at]) : 1;
            const double got = matrix_at(m, i, j);

            if (fabs(got - expected->at[at]) <=
                roundings * roundoff(m->dtype) * scale + 1e-9)
                continue;
            printf("  %s of %s, element %lld, %lld: %.9g, not %.9g\n", name,
                   ptac_dtype_name(m->dtype), (long long)i, (long long)j, got,
                   expected->at[at]);
            return false;
        }
    return true;
}

/* --- the device --- */

void device_begin(void)
{
    static bool has_begun;
    static matrix workspace;

    if (has_begun)
        return;
    the_device.begin();
    emulated_lt.stream = the_device.stream;
    if (ptac_lt_load(NULL) || ptac_lt_open(0, 90))
        abort();
    workspace = matrix_new(PTAC_OTHER_DTYPE, 1, WORKSPACE_BYTES, WORKSPACE_BYTES, 0);
    the_workspace = (ptac_lt_workspace){workspace.data, WORKSPACE_BYTES};
    has_begun = true;
}

void refuse(const uint32_t *epilogues)
{
    memset(emulated_lt.refused, 0, sizeof emulated_lt.refused);
    for (int i = 0; i < EMULATED_LT_MOST_REFUSED && epilogues[i]; i++)
        emulated_lt.refused[i] = epilogues[i];
    ptac_lt_plan_clear();
}

void refuse_all(bool all)
{
    emulated_lt.refuses_all = all;
    ptac_lt_plan_clear();
}

void forget_work(void)
{
    emulated_lt.n_products = emulated_lt.n_with_epilogue = 0;
    emulator_forget();
}

work work_done(void)
{
    return (work){emulated_lt.n_products, emulated_lt.n_with_epilogue,
                  emulator_work().n_launches};
}
