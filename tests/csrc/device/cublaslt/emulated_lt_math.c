/*
 * emulated_lt_math.c - a product and its epilogue, by their definitions, in double.
 *
 * Column by column as cuBLASLt has it. Source of the epilogues: cublasLtEpilogue_t in
 * the cuBLAS documentation; GELU is the approximation by tanh.
 */
#include "emulated_lt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t emulated_lt_bytes(int type)
{
    return type == PTAC_LT_R_32F || type == PTAC_LT_R_32I    ? 4
           : type == PTAC_LT_R_16F || type == PTAC_LT_R_16BF ? 2
           : type == PTAC_LT_R_8I || type == PTAC_LT_R_E4M3  ? 1
                                                             : 0;
}

/* Sign, four bits of exponent with a bias of 7, three of mantissa; no infinities. */
static double of_e4m3(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double magnitude =
        exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

    if ((bits & 0x7f) == 0x7f)
        return NAN;
    return bits & 0x80 ? -magnitude : magnitude;
}

static double get(int type, const void *data, int64_t i)
{
    float f = 0;
    uint32_t bits;

    switch (type) {
    case PTAC_LT_R_16F:
        return (double)((const _Float16 *)data)[i];
    case PTAC_LT_R_16BF:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case PTAC_LT_R_8I:
        return ((const int8_t *)data)[i];
    case PTAC_LT_R_E4M3:
        return of_e4m3(((const uint8_t *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

static void put(int type, void *data, int64_t i, double x)
{
    const float f = (float)x;
    uint32_t bits;

    switch (type) {
    case PTAC_LT_R_16F:
        ((_Float16 *)data)[i] = (_Float16)x;
        break;
    case PTAC_LT_R_16BF:
        memcpy(&bits, &f, sizeof bits);
        bits = f != f ? 0x7fff0000 : bits + 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        break;
    case PTAC_LT_R_32I:
        ((int32_t *)data)[i] = (int32_t)x;
        break;
    default:
        ((float *)data)[i] = f;
    }
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(M_2_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(sqrt(M_2_PI) * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) +
           0.5 * x * (1 - t * t) * sqrt(M_2_PI) * (1 + 3 * 0.044715 * x * x);
}

/* Element (i, j) of A or B as it enters the product. */
static double operand(const struct lt_layout_opaque *layout, const void *data,
                      bool is_transposed, uint64_t i, uint64_t j)
{
    const uint64_t row = is_transposed ? j : i, column = is_transposed ? i : j;

    return get(layout->type, data, (int64_t)row + (int64_t)column * layout->ld);
}

static double dot(const lt_product *p, uint64_t i, uint64_t j)
{
    const struct lt_desc_opaque *desc = p->desc;
    const bool ta = desc->is_transposed[0], tb = desc->is_transposed[1];
    const uint64_t k = ta ? p->a->rows : p->a->columns;
    double sum = 0;

    for (uint64_t l = 0; l < k; l++)
        sum += operand(p->a, p->a_data, ta, i, l) * operand(p->b, p->b_data, tb, l, j);
    if (desc->scale[0])
        sum *= (double)desc->scale[0][i] * desc->scale[1][j];
    return sum;
}

static double through_mask(const struct lt_desc_opaque *desc, double x, int64_t bit)
{
    uint8_t *byte = (uint8_t *)desc->aux + bit / 8;
    const uint8_t one = (uint8_t)(1 << bit % 8);

    if (desc->epilogue & 8) /* DRELU */
        return *byte & one ? x : 0;
    if (desc->epilogue & 128)
        *byte = (uint8_t)((*byte & ~one) | (x > 0 ? one : 0));
    return x < 0 ? 0 : x;
}

static double through_gelu(const struct lt_desc_opaque *desc, int type, double x,
                           int64_t at)
{
    if (desc->epilogue & 64) /* DGELU */
        return x * gelu_slope(get(type, desc->aux, at));
    if (desc->epilogue & 128)
        put(type, desc->aux, at, x);
    return gelu(x);
}

static double finish(const lt_product *p, uint64_t i, uint64_t j, double x)
{
    const struct lt_desc_opaque *desc = p->desc;
    const int64_t at = (int64_t)i + (int64_t)j * desc->aux_ld;

    if (desc->epilogue & 4)
        x += get(desc->bias_type < 0 ? p->d->type : desc->bias_type, desc->bias,
                 (int64_t)i);
    if (desc->epilogue & (2 | 8))
        return through_mask(desc, x, at);
    if (desc->epilogue & (32 | 64))
        return through_gelu(desc, p->d->type, x, at);
    return x;
}

/* The sums over the inner dimension of A's rows, or of B's columns. */
static void sum_operand(const lt_product *p, bool is_b)
{
    const struct lt_desc_opaque *desc = p->desc;
    const struct lt_layout_opaque *layout = is_b ? p->b : p->a;
    const bool transposed = desc->is_transposed[is_b];
    const uint64_t k = p->desc->is_transposed[0] ? p->a->rows : p->a->columns;
    const uint64_t n = is_b ? p->d->columns : p->d->rows;

    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;

        for (uint64_t l = 0; l < k; l++)
            sum += is_b ? operand(layout, p->b_data, transposed, l, i)
                        : operand(layout, p->a_data, transposed, i, l);
        put(desc->bias_type < 0 ? p->d->type : desc->bias_type, desc->bias, (int64_t)i,
            sum);
    }
}

void emulated_lt_multiply(const lt_product *p)
{
    const uint32_t epilogue = p->desc->epilogue;
    double *sums = calloc(p->d->rows, sizeof *sums);

    if (!sums)
        abort();
    if (epilogue == PTAC_LT_EPI_BGRADA || epilogue == PTAC_LT_EPI_BGRADB)
        sum_operand(p, epilogue == PTAC_LT_EPI_BGRADB);
    for (uint64_t j = 0; j < p->d->columns; j++)
        for (uint64_t i = 0; i < p->d->rows; i++) {
            const double x = finish(p, i, j, dot(p, i, j));

            sums[i] += x;
            put(p->d->type, p->d_data, (int64_t)i + (int64_t)j * p->d->ld, x);
        }
    for (uint64_t i = 0; (epilogue & 16) && i < p->d->rows; i++)
        put(p->desc->bias_type < 0 ? p->d->type : p->desc->bias_type, p->desc->bias,
            (int64_t)i, sums[i]);
    free(sums);
}
