/*
 * gen_int8.c - random calls of int8_linear and int8_embedding.
 *
 * Rows of activations have each a manner of their own, as each has its scale. Weights
 * are packed here: the layout is the kernels' own.
 */
#include "int8_values.h"

#include "ops/int8/embedding/int8_embedding.h"
#include "ops/int8/int8_linear.h"

#include <stdio.h>

enum {
    MOST = 130, /* m, n and k that are tried in any combination */
    MOST_PRODUCTS = 300000,
};

static ptac_int8_linear *linear_of(test_call *c)
{
    return (ptac_int8_linear *)c->params;
}

/* Now and then many rows, for threads; a wide layer; sums as long as there may be. */
static void random_sizes(rng *r, ptac_int8_linear *p)
{
    p->k = rng_length(r, MOST);
    p->n = rng_length(r, MOST);
    p->m = rng_chance(r, 30) ? 1 : rng_length(r, MOST);
    switch (rng_below(r, 24)) {
    case 0:
        p->m = rng_between(r, 200, 600);
        break;
    case 1:
        p->n = rng_between(r, 300, 1500);
        break;
    case 2:
        p->k = rng_between(r, 1000, 9000);
        break;
    case 3:
        p->k = PTAC_INT8_MOST_TERMS + rng_between(r, -1, 1);
        p->n = rng_length(r, 20);
        p->m = rng_between(r, 1, 2);
        return;
    default:
        break;
    }
    while (p->m * p->n * p->k > MOST_PRODUCTS) {
        if (p->m >= p->n)
            p->m = (p->m + 1) / 2;
        else if (p->n >= 16)
            p->n = (p->n + 1) / 2;
        else
            p->k = (p->k + 1) / 2;
    }
}

/* Rows that lie apart have NaN between them. */
static void add_x(rng *r, test_call *c)
{
    ptac_int8_linear *p = linear_of(c);
    const int64_t gap = rng_chance(r, 30) ? rng_between(r, 1, 20) : 0;
    int64_t n_floats;
    float *x;

    p->x_stride = p->k + gap;
    n_floats = (p->m - 1) * p->x_stride + p->k;
    x = test_input(c, PTAC_F32, 1, &n_floats, false);
    for (int64_t i = 0; i < n_floats; i++)
        x[i] = NAN;
    for (int64_t i = 0; i < p->m; i++)
        fill_row(r, x + i * p->x_stride, p->k);

    ptac_view *view = &c->call.inputs[0];

    view->n_dims = 2;
    view->n_elements = p->m * p->k;
    c->sizes[0][0] = p->m;
    c->sizes[0][1] = p->k;
    c->strides[0][0] = p->x_stride;
    c->strides[0][1] = 1;
}

static void make_linear(rng *r, test_call *c)
{
    ptac_int8_linear *p = linear_of(c);
    int64_t sizes[2];

    c->call.op = PTAC_OP_INT8_LINEAR;
    random_sizes(r, p);
    p->relu = rng_chance(r, 40);
    add_x(r, c);
    add_packed(r, c, p->n, p->k);
    fill_scales(r, test_input(c, PTAC_F32, 1, &p->n, false), p->n);
    if (rng_chance(r, 70)) {
        float *bias = test_input(c, PTAC_F32, 1, &p->n, false);

        if (rng_chance(r, 10))
            fill_reals(r, PTAC_F32, bias, p->n);
        else
            fill_smooth(r, PTAC_F32, bias, p->n, 10);
    }
    sizes[0] = p->m;
    sizes[1] = p->n;
    test_output(c, PTAC_F32, 2, sizes, false);
    c->must_be_given_back = p->k > PTAC_INT8_MOST_TERMS;
    snprintf(c->note, sizeof c->note, "m %lld, n %lld, k %lld, stride %lld%s%s",
             (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->x_stride,
             p->relu ? ", relu" : "", c->call.n_inputs > 3 ? ", bias" : "");
}

GENERATOR(linear, .op = PTAC_OP_INT8_LINEAR, .make = make_linear)

static void make_embedding(rng *r, test_call *c)
{
    ptac_int8_embedding *p = (ptac_int8_embedding *)c->params;
    int64_t sizes[2], *indices;

    c->call.op = PTAC_OP_INT8_EMBEDDING;
    p->n_indices = rng_length(r, rng_chance(r, 10) ? 3000 : MOST);
    p->n_rows = rng_length(r, MOST);
    p->width = rng_length(r, MOST);
    indices = test_input(c, PTAC_I64, 1, &p->n_indices, false);
    for (int64_t i = 0; i < p->n_indices; i++)
        indices[i] = rng_below(r, p->n_rows);
    if (rng_chance(r, 10)) {
        indices[rng_below(r, p->n_indices)] =
            RNG_PICK(r, p->n_rows, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 32);
        c->must_be_given_back = true;
    }
    sizes[0] = p->n_rows;
    sizes[1] = p->width;
    fill_bytes(r, test_input(c, PTAC_OTHER_DTYPE, 2, sizes, false),
               p->n_rows * p->width);
    fill_scales(r, test_input(c, PTAC_F32, 1, &p->n_rows, false), p->n_rows);
    sizes[0] = p->n_indices;
    test_output(c, PTAC_F32, 2, sizes, false);
    snprintf(c->note, sizeof c->note, "%lld of %lldx%lld%s", (long long)p->n_indices,
             (long long)p->n_rows, (long long)p->width,
             c->must_be_given_back ? ", a wild index" : "");
}

GENERATOR(embedding, .op = PTAC_OP_INT8_EMBEDDING, .make = make_embedding)
