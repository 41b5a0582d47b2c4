/*
 * gen_product.c - random products, of matrices that lie row by row or column by column.
 */
#include "checkrows.h"

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

/* What an element is made of: the sum of the magnitudes of its terms. */
static void scale(test_call *c)
{
    const test_buffer *a = &c->buffers[c->input_buffers[0]];
    const test_buffer *b = &c->buffers[c->input_buffers[1]];
    const int64_t k = c->sizes[0][1];
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
