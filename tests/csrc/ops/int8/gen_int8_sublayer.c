/*
 * gen_int8_sublayer.c - random calls of int8_sublayer.
 */
#include "int8_values.h"

#include "ops/int8/sublayer/int8_sublayer.h"

#include <stdio.h>

enum {
    MOST = 130, /* m, n, k and n_2 that are tried in any combination */
    MOST_PRODUCTS = 300000,
    SHARED_PRODUCTS = 6000000, /* enough for two threads */
};

static void random_sizes(rng *r, ptac_int8_sublayer *p)
{
    const bool is_shared = rng_chance(r, 3);
    const int64_t most = is_shared ? SHARED_PRODUCTS : MOST_PRODUCTS;

    p->m = rng_chance(r, 10) ? 1 : rng_length(r, rng_chance(r, 10) ? 600 : MOST);
    p->n = rng_length(r, MOST);
    p->k = rng_length(r, MOST);
    p->n_2 = rng_chance(r, 60) ? rng_length(r, MOST) : 0;
    if (rng_chance(r, 5)) /* several blocks of few rows */
        p->n = rng_between(r, 2000, 3000), p->m = rng_between(r, 20, 60);
    if (is_shared) {
        p->m = rng_between(r, 300, 600);
        p->n = p->k = MOST;
    }
    while (p->m * p->n * (p->k + p->n_2) > most) {
        if (p->k > 8)
            p->k = (p->k + 1) / 2;
        else if (p->n_2 > 8)
            p->n_2 = (p->n_2 + 1) / 2;
        else if (p->m > 50)
            p->m = (p->m + 1) / 2;
        else
            p->n = (p->n + 1) / 2;
    }
}

/* Floats, or an input that is not there. */
static float *add_floats(rng *r, test_call *c, int64_t n, bool is_there)
{
    float *x;

    if (!is_there) {
        test_no_input(c);
        return NULL;
    }
    x = test_input(c, PTAC_F32, 1, &n, false);
    fill_smooth(r, PTAC_F32, x, n, 1);
    return x;
}

/* Scales by which results are about as large as what they are made of. */
static void add_weight(rng *r, test_call *c, int64_t n, int64_t k)
{
    add_packed(r, c, n, k);
    if (rng_chance(r, 20)) {
        fill_scales(r, test_input(c, PTAC_F32, 1, &n, false), n);
    } else {
        float *scales = test_input(c, PTAC_F32, 1, &n, false);

        for (int64_t i = 0; i < n; i++)
            scales[i] = (float)rng_between(r, 1, 1000) * 1e-5f;
    }
    add_floats(r, c, n, rng_chance(r, 70));
}

static void make_sublayer(rng *r, test_call *c)
{
    ptac_int8_sublayer *p = (ptac_int8_sublayer *)c->params;
    int64_t sizes[2];
    float *x;

    c->call.op = PTAC_OP_INT8_SUBLAYER;
    random_sizes(r, p);
    p->act = p->n_2 || rng_chance(r, 10)
                 ? RNG_PICK(r, PTAC_ACT_NONE, PTAC_ACT_RELU, PTAC_ACT_GELU)
                 : PTAC_ACT_NONE;
    p->norm = RNG_PICK(r, PTAC_SUBLAYER_NO_NORM, PTAC_SUBLAYER_NORM_FIRST,
                       PTAC_SUBLAYER_NORM_LAST);
    p->eps = RNG_PICK(r, 1e-5f, 1e-12f, 0.1f);
    sizes[0] = p->m;
    sizes[1] = p->k;
    x = test_input(c, PTAC_F32, 2, sizes, false);
    for (int64_t i = 0; i < p->m; i++)
        fill_row(r, x + i * p->k, p->k);
    sizes[1] = ptac_sublayer_width(p);
    add_floats(r, c, p->m * sizes[1], rng_chance(r, 70));

    const int64_t width = p->norm == PTAC_SUBLAYER_NORM_FIRST ? p->k : sizes[1];

    add_floats(r, c, width, p->norm && rng_chance(r, 80));
    add_floats(r, c, width, p->norm && rng_chance(r, 80));
    add_weight(r, c, p->n, p->k);
    if (p->n_2)
        add_weight(r, c, p->n_2, p->n);
    else
        for (int i = 0; i < 3; i++)
            test_no_input(c);
    test_output(c, PTAC_F32, 2, sizes, false);
    c->must_be_given_back = p->m == 1 || (p->act == PTAC_ACT_GELU && !p->n_2);
    snprintf(c->note, sizeof c->note,
             "m %lld, k %lld, n %lld, then %lld; act %d, norm %d%s", (long long)p->m,
             (long long)p->k, (long long)p->n, (long long)p->n_2, (int)p->act,
             (int)p->norm, c->call.inputs[PTAC_SUBLAYER_RESIDUAL].data ? ", adds" : "");
}

GENERATOR(sublayer, .op = PTAC_OP_INT8_SUBLAYER, .make = make_sublayer)
