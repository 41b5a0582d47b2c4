/*
 * gen_product.c - random products, of matrices that lie row by row or column by column.
 */
#include "checkrows.h"
#include "ops/product/product.h"

#include <math.h>
#include <stdio.h>

/* A matrix, maybe transposed. */
static bool matrix(rng *r, test_call *c, int i, int64_t n_rows, int64_t n_columns)
{
    const bool is_transposed = rng_below(r, 2);
    const int64_t sizes[] = {n_rows, n_columns}, n = n_rows * n_columns;
    float *values = test_input(c, PTAC_F32, 2, sizes, false);

    fill_smooth(r, PTAC_F32, values, n, rng_chance(r, 20) ? 1e18 : 1);
    if (rng_chance(r, 20)) /* sums of both kinds of infinity are NaN in any order */
        for (int64_t j = 0; j < 3; j++)
            values[rng_below(r, n)] = RNG_PICK(r, 0, 1) ? INFINITY : NAN;
    if (is_transposed) {
        c->strides[i][0] = 1;
        c->strides[i][1] = n_rows;
    }
    return is_transposed;
}

static void make(rng *r, test_call *c, ptac_op op)
{
    const int64_t m = rng_length(r, 70), n = rng_length(r, 90), k = rng_length(r, 1200);
    const int64_t sizes[] = {m, n};

    c->call.op = op;

    const bool a = matrix(r, c, 0, m, k), b = matrix(r, c, 1, k, n);

    if (op == PTAC_OP_ADDMM)
        fill_smooth(r, PTAC_F32, test_input(c, PTAC_F32, 1, sizes + 1, false), n, 1);
    test_output(c, PTAC_F32, 2, sizes, false);
    snprintf(c->note, sizeof c->note, "%lld x %lld x %lld, %c%c", (long long)m,
             (long long)k, (long long)n, a ? 't' : 'n', b ? 't' : 'n');
}

static void make_mm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_MM);
}

static void make_addmm(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_ADDMM);
}

/* Matrices, maybe each of them transposed, or all of them the first one. */
static void matrices(rng *r, test_call *c, int i, int64_t n_all, int64_t n_rows,
                     int64_t n_columns)
{
    const int64_t sizes[] = {n_all, n_rows, n_columns}, n = n_all * n_rows * n_columns;
    float *values = test_input(c, PTAC_F32, 3, sizes, false);

    fill_smooth(r, PTAC_F32, values, n, rng_chance(r, 20) ? 1e18 : 1);
    if (rng_chance(r, 20))
        values[rng_below(r, n)] = RNG_PICK(r, 0, 1) ? INFINITY : NAN;
    if (rng_below(r, 2)) {
        c->strides[i][1] = 1;
        c->strides[i][2] = n_rows;
    }
    if (rng_chance(r, 10))
        c->strides[i][0] = 0;
}

static void make_many(rng *r, test_call *c, ptac_op op)
{
    const int64_t n_all = rng_length(r, 9), m = rng_length(r, 40);
    const int64_t n = rng_length(r, 90),
                  k = rng_length(r, rng_chance(r, 10) ? 600 : 90);
    const int64_t sizes[] = {n_all, m, n};

    c->call.op = op;
    matrices(r, c, 0, n_all, m, k);
    matrices(r, c, 1, n_all, k, n);
    if (op == PTAC_OP_BADDBMM) {
        ptac_product_factors *factors = (ptac_product_factors *)c->params;
        const int64_t added[] = {RNG_PICK(r, 1, n_all), RNG_PICK(r, 1, m), n};
        const int n_dims = 1 + (int)rng_below(r, 3);
        const int64_t *last = added + 3 - n_dims;
        int64_t n_added = 1;

        for (int i = 0; i < n_dims; i++)
            n_added *= last[i];
        fill_smooth(r, PTAC_F32, test_input(c, PTAC_F32, n_dims, last, false), n_added,
                    1);
        factors->alpha = rng_below(r, 2) ? 1 : 0.125f;
        factors->beta = (float)RNG_PICK(r, 0, 1, -2);
    }
    test_output(c, PTAC_F32, 3, sizes, false);
    snprintf(c->note, sizeof c->note, "%lld of %lld x %lld x %lld", (long long)n_all,
             (long long)m, (long long)k, (long long)n);
}

static void make_bmm(rng *r, test_call *c)
{
    make_many(r, c, PTAC_OP_BMM);
}

static void make_baddbmm(rng *r, test_call *c)
{
    make_many(r, c, PTAC_OP_BADDBMM);
}

/* What an element is made of: the sum of the magnitudes of its terms. */
static void scale(test_call *c)
{
    const test_buffer *a = &c->buffers[c->input_buffers[0]];
    const test_buffer *b = &c->buffers[c->input_buffers[1]];
    const int64_t k = c->sizes[0][c->call.inputs[0].n_dims - 1];
    double largest[2] = {0, 0};

    for (int64_t i = 0; i < a->n_elements; i++)
        if (isfinite(((const float *)a->content)[i]))
            largest[0] = fmax(largest[0], fabs(((const float *)a->content)[i]));
    for (int64_t i = 0; i < b->n_elements; i++)
        if (isfinite(((const float *)b->content)[i]))
            largest[1] = fmax(largest[1], fabs(((const float *)b->content)[i]));
    c->buffers[c->output_buffers[0]].least_scale =
        sqrt((double)k) * largest[0] * largest[1];
}

/* A sum of up to 256 terms, in the order of its lanes, errs by less than 64 of them. */
GENERATOR(mm, .op = PTAC_OP_MM, .make = make_mm, .scale = scale, .roundings = 64)
GENERATOR(addmm, .op = PTAC_OP_ADDMM, .make = make_addmm, .scale = scale,
          .roundings = 64)
GENERATOR(bmm, .op = PTAC_OP_BMM, .make = make_bmm, .scale = scale, .roundings = 64)
GENERATOR(baddbmm, .op = PTAC_OP_BADDBMM, .make = make_baddbmm, .scale = scale,
          .roundings = 64)
