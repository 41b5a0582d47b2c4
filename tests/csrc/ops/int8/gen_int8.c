/*
 * gen_int8.c - random calls of int8_linear and int8_embedding.
 *
 * Rows of activations have each a manner of their own, as each has its scale. Weights
 * are packed here: the layout is the kernels' own.
 */
#include "checkrows.h"

#include "ops/int8/embedding/int8_embedding.h"
#include "ops/int8/int8_linear.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* x between bounds, one of which may be zero: bytes at 0 and 255 and all between. */
static void fill_between(rng *r, float *x, int64_t n, double lo, double hi)
{
    const bool is_extreme = rng_chance(r, 30);

    for (int64_t i = 0; i < n; i++) {
        const double at = is_extreme ? (double)rng_below(r, 2)
                                     : (double)rng_below(r, 1 << 20) / (1 << 20);

        x[i] = (float)(lo + at * (hi - lo));
    }
}

/* Halves of a step, where rounding has to choose: the scale is a power of two. */
static void fill_ties(rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 0.5f * (float)rng_between(r, -254, 254);
    x[rng_below(r, n)] = 127.0f;
    x[rng_below(r, n)] = -128.0f;
}

static void fill_row(rng *r, float *x, int64_t n)
{
    const double size = ldexp(1, (int)rng_between(r, -20, 20));

    switch (rng_below(r, 10)) {
    case 0:
        memset(x, 0, (size_t)n * sizeof *x);
        break;
    case 1: /* a range that overflows, and ones below which there is no scale */
        fill_smooth(r, PTAC_F32, x, n, RNG_PICK(r, 0, 1) ? 3.4e38 : 0x1p-110);
        break;
    case 2:
        fill_reals(r, PTAC_F32, x, n);
        break;
    case 3:
        fill_between(r, x, n, 0, size);
        break;
    case 4:
        fill_between(r, x, n, -size, 0);
        break;
    case 5:
        fill_between(r, x, n, -size, size);
        break;
    case 6:
        fill_between(r, x, n, size, 1.5 * size);
        break;
    case 7:
        fill_ties(r, x, n);
        break;
    default:
        fill_smooth(r, PTAC_F32, x, n, size);
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

static void fill_bytes(rng *r, int8_t *q, int64_t n)
{
    const int64_t manner = rng_below(r, 6);

    for (int64_t i = 0; i < n; i++)
        q[i] = (int8_t)(manner == 0   ? 127
                        : manner == 1 ? -127
                        : manner == 2 ? RNG_PICK(r, -127, 127)
                        : manner == 3 ? RNG_PICK(r, 0, 0, 0, 1, -1)
                                      : rng_between(r, -127, 127));
}

/* As words: the sums behind the panels are aligned like those. */
static void add_packed(rng *r, test_call *c)
{
    const ptac_int8_linear *p = linear_of(c);
    const ptac_packed_shape shape = {.n = p->n, .c = p->k, .taps = 1, .groups = 1};
    const int64_t n_words = ptac_packed_bytes(&shape) / 4;
    int8_t *plain = malloc((size_t)(p->n * p->k));
    float *packed = test_input(c, PTAC_F32, 1, &n_words, false);

    if (!plain)
        abort();
    fill_bytes(r, plain, p->n * p->k);
    ptac_pack(&shape, plain, (int8_t *)packed);
    free(plain);
    c->call.inputs[1].dtype = PTAC_OTHER_DTYPE;
}

static void fill_scales(rng *r, float *scale, int64_t n)
{
    fill_smooth(r, PTAC_F32, scale, n, (double)RNG_PICK(r, 1, 1, 1, 1 << 20));
    for (int64_t i = 0; i < n; i++)
        scale[i] = rng_chance(r, 5) ? 0.0f : fabsf(scale[i]);
}

static void make_linear(rng *r, test_call *c)
{
    ptac_int8_linear *p = linear_of(c);
    int64_t sizes[2];

    c->call.op = PTAC_OP_INT8_LINEAR;
    random_sizes(r, p);
    p->relu = rng_chance(r, 40);
    add_x(r, c);
    add_packed(r, c);
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
