/*
 * gen_copy.c - random copies between two arrangements of as many dimensions.
 *
 * Each lays the dimensions out in an order of its own; the input may have gaps, and
 * repeat elements. An output with gaps would hold noise there; those are in
 * tests/fusion/test_copy.py.
 */
#include "checkrows.h"
#include "ops/copy/copy.h"

#include <stdio.h>

enum {
    MOST_DIMS = 5,
    MOST_ELEMENTS = 40000,
};

/* Strides of elements in a random order, and how far they reach. */
static int64_t arrange(rng *r, int n_dims, const int64_t *sizes, int gaps,
                       int64_t *strides)
{
    int order[MOST_DIMS];
    int64_t reach = 1;

    for (int i = 0; i < n_dims; i++) {
        const int j = (int)rng_below(r, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < n_dims; i++) {
        strides[order[i]] = reach;
        reach *= sizes[order[i]] + (rng_chance(r, gaps) ? rng_between(r, 1, 3) : 0);
    }
    return reach;
}

/* Some planes are long, and others deep. */
static void draw_sizes(rng *r, int n_dims, int64_t *sizes)
{
    int64_t n = 1;

    for (int i = 0; i < n_dims; i++) {
        const int64_t most = MOST_ELEMENTS / n;

        sizes[i] = rng_chance(r, 25) ? rng_between(r, 1, ptac_least(300, most))
                                     : rng_between(r, 1, ptac_least(18, most));
        n *= sizes[i];
    }
}

static void make(rng *r, test_call *c)
{
    static const ptac_dtype dtypes[] = {PTAC_F32, PTAC_BF16, PTAC_F64};
    const ptac_dtype dtype = dtypes[rng_below(r, 3)];
    const int n_dims = (int)rng_between(r, 2, MOST_DIMS);
    int64_t sizes[MOST_DIMS], to[MOST_DIMS], from[MOST_DIMS], of_to, of_from, n;
    ptac_copy *p = (ptac_copy *)c->params;

    _Static_assert(sizeof *p <= PARAMS_BYTES, "there is too little room");
    do {
        n = 1;
        draw_sizes(r, n_dims, sizes);
        of_to = arrange(r, n_dims, sizes, 0, to);
        of_from = arrange(r, n_dims, sizes, rng_chance(r, 30) ? 30 : 0, from);
        if (rng_chance(r, 20))
            from[rng_below(r, n_dims)] = 0;
        for (int i = 0; i < n_dims; i++)
            n *= sizes[i];
    } while (of_to > 4 * MOST_ELEMENTS || of_from > 4 * MOST_ELEMENTS ||
             ptac_copy_plan(
                 &(ptac_view){
                     .sizes = sizes, .strides = to, .n_dims = n_dims, .n_elements = n},
                 &(ptac_view){.sizes = sizes, .strides = from, .n_dims = n_dims},
                 (int)dtype_bytes(dtype), p) != PTAC_TAKE);
    c->call.op = PTAC_OP_COPY;
    fill_reals(r, dtype, test_input(c, dtype, 1, &of_from, false), of_from);
    test_output(c, dtype, 1, &of_to, false);
    snprintf(c->note, sizeof c->note,
             "way %d, %d bytes an element, last %lld (%lld from %lld) of %lld (%lld "
             "from %lld)",
             (int)p->way, p->bytes, (long long)p->sizes[p->n_dims - 1],
             (long long)p->to[p->n_dims - 1], (long long)p->from[p->n_dims - 1],
             (long long)p->sizes[p->n_dims > 1 ? p->n_dims - 2 : 0],
             (long long)p->to[p->n_dims > 1 ? p->n_dims - 2 : 0],
             (long long)p->from[p->n_dims > 1 ? p->n_dims - 2 : 0]);
}

GENERATOR(copies, .op = PTAC_OP_COPY, .make = make,
          .nan_bits = 1u << PTAC_F32 | 1u << PTAC_BF16 | 1u << PTAC_F64)
