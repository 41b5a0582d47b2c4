/*
 * gen_bag.c - random calls of what sums bags of rows, and of the gradient of the
 * largest.
 */
#include "checkrows.h"
#include "ops/indexing/bag.h"

#include <stdio.h>

static ptac_bag *params_of(test_call *c)
{
    return (ptac_bag *)c->params;
}

static void *add_integers(test_call *c, int64_t n)
{
    return test_input(c, params_of(c)->rows.has_32_bits ? PTAC_F32 : PTAC_I64, 1, &n,
                      false);
}

static void expect_integers(test_call *c, int n_dims, const int64_t *sizes)
{
    test_output(c, params_of(c)->rows.has_32_bits ? PTAC_F32 : PTAC_I64, n_dims, sizes,
                false);
}

static void set_sizes(rng *r, test_call *c, ptac_op op)
{
    ptac_bag *p = params_of(c);
    ptac_rows *rows = &p->rows;

    c->call.op = op;
    rows->n_rows = rng_length(r, 300);
    rows->width = RNG_PICK(r, 1, 2, 4, 8, 16, 32, 48, 64, 128, rng_length(r, 150));
    rows->n = rng_chance(r, 10) ? 3000 : rng_length(r, 700);
    rows->stride = rows->x_stride = rows->width;
    rows->padding = rng_chance(r, 30) ? rng_below(r, rows->n_rows) : PTAC_NO_ROW;
    rows->has_32_bits = rng_chance(r, 30);
    p->mode = (ptac_bag_mode)rng_below(r, 3);
    p->n_bags = rng_length(r, rng_chance(r, 50) ? 10 : 400);
    p->n_offsets = p->n_bags + rng_chance(r, 30);
    p->n_sizes =
        rng_chance(r, 50) && p->mode == PTAC_BAG_SUM ? p->n_offsets : p->n_bags;
    snprintf(c->note, sizeof c->note,
             "mode %d, %lld rows of %lld, %lld indices of %d bits in %lld bags",
             (int)p->mode, (long long)rows->n_rows, (long long)rows->width,
             (long long)rows->n, rows->has_32_bits ? 32 : 64, (long long)p->n_bags);
}

/* Where bags begin: some of them are empty. */
static void fill_offsets(rng *r, test_call *c, void *offsets)
{
    const ptac_bag *p = params_of(c);
    int64_t at = 0;

    for (int64_t b = 0; b < p->n_bags; b++) {
        const int64_t left = p->rows.n - at;

        ptac_bag_put(p, offsets, b, at);
        if (left > 0 && !rng_chance(r, 15))
            at += rng_between(r, 0, ptac_least(left, 1 + 2 * left / (p->n_bags - b)));
    }
    if (p->n_offsets > p->n_bags)
        ptac_bag_put(p, offsets, p->n_bags, p->rows.n);
    if (rng_chance(r, 5)) {
        ptac_bag_put(p, offsets, rng_below(r, p->n_offsets),
                     RNG_PICK(r, -1, p->rows.n + 1));
        c->must_be_given_back = true;
    }
}

static void make_bag(rng *r, test_call *c)
{
    ptac_bag *p;
    void *index;

    set_sizes(r, c, PTAC_OP_EMBEDDING_BAG);
    p = params_of(c);
    fill_reals(r, PTAC_F32,
               test_input(c, PTAC_F32, 2,
                          (const int64_t[]){p->rows.n_rows, p->rows.width}, false),
               p->rows.n_rows * p->rows.width);
    index = add_integers(c, p->rows.n);
    for (int64_t i = 0; i < p->rows.n; i++)
        ptac_bag_put(p, index, i, rng_below(r, p->rows.n_rows));
    if (rng_chance(r, 5)) {
        ptac_bag_put(p, index, rng_below(r, p->rows.n),
                     RNG_PICK(r, p->rows.n_rows, -1, INT32_MAX));
        c->must_be_given_back = true;
    }
    fill_offsets(r, c, add_integers(c, p->n_offsets));
    test_output(c, PTAC_F32, 2, (const int64_t[]){p->n_bags, p->rows.width}, false);
    if (p->mode == PTAC_BAG_SUM && rng_chance(r, 50))
        test_no_output(c);
    else
        expect_integers(c, 1, &p->rows.n);
    expect_integers(c, 1, &p->n_sizes);
    if (p->mode == PTAC_BAG_MAX)
        expect_integers(c, 2, (const int64_t[]){p->n_bags, p->rows.width});
    else
        expect_integers(c, 1, &p->n_sizes);
}

static void make_max_gradient(rng *r, test_call *c)
{
    ptac_bag *p;
    void *largest, *sizes;

    set_sizes(r, c, PTAC_OP_EMBEDDING_BAG_MAX_BACKWARD);
    p = params_of(c);
    fill_reals(
        r, PTAC_F32,
        test_input(c, PTAC_F32, 2, (const int64_t[]){p->n_bags, p->rows.width}, false),
        p->n_bags * p->rows.width);
    largest = add_integers(c, p->n_bags * p->rows.width);
    for (int64_t i = 0; i < p->n_bags * p->rows.width; i++)
        ptac_bag_put(p, largest, i, rng_below(r, p->rows.n_rows));
    sizes = add_integers(c, p->n_bags);
    for (int64_t b = 0; b < p->n_bags; b++)
        ptac_bag_put(p, sizes, b, rng_below(r, 3));
    test_output(c, PTAC_F32, 2, (const int64_t[]){p->rows.n_rows, p->rows.width},
                false);
}

/* Sums of NaNs may have either's bits; the largest is a copy. */
GENERATOR(bags, .op = PTAC_OP_EMBEDDING_BAG, .make = make_bag)
GENERATOR(max_gradient, .op = PTAC_OP_EMBEDDING_BAG_MAX_BACKWARD,
          .make = make_max_gradient)
