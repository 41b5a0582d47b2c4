/*
 * gen_reduce.c - random calls of what reduces rows by indices, or fills them.
 */
#include "checkrows.h"
#include "ops/indexing/reduce.h"

#include <stdio.h>

static void add_matrix(rng *r, test_call *c, int64_t n, int64_t width)
{
    const int64_t sizes[] = {n, width};

    fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 2, sizes, false), n * width);
}

static void add_index(rng *r, test_call *c, const ptac_rows *p)
{
    const int64_t used = rng_chance(r, 30) ? rng_between(r, 1, p->n_rows) : p->n_rows;
    int64_t *index = test_input(c, PTAC_I64, 1, &p->n, false);

    for (int64_t i = 0; i < p->n; i++)
        index[i] = rng_below(r, used);
    if (rng_chance(r, 5)) {
        index[rng_below(r, p->n)] = RNG_PICK(r, p->n_rows, -1, INT32_MAX);
        c->must_be_given_back = true;
    }
}

static void make(rng *r, test_call *c, ptac_op op)
{
    ptac_reduction *reduction = (ptac_reduction *)c->params;
    ptac_rows *p = &reduction->rows;

    c->call.op = op;
    p->n_rows = rng_length(r, 300);
    p->width = RNG_PICK(r, 1, 1, 2, 3, 4, 8, 16, 32, 64, rng_length(r, 150));
    p->n = rng_chance(r, 10) ? 3000 : rng_length(r, 700);
    p->stride = p->x_stride = p->width;
    p->padding = PTAC_NO_ROW;
    reduction->how = RNG_PICK(r, PTAC_REDUCE_SUM, PTAC_REDUCE_MEAN, PTAC_REDUCE_LARGEST,
                              PTAC_REDUCE_SMALLEST);
    reduction->has_self = rng_chance(r, 50);
    reduction->has_later = rng_chance(r, 50);
    reduction->value = (float)rng_between(r, -2, 2);
    snprintf(c->note, sizeof c->note, "%lld rows of %lld, %lld indices, how %d",
             (long long)p->n_rows, (long long)p->width, (long long)p->n,
             (int)reduction->how);
    add_matrix(r, c, p->n_rows, p->width);
    add_index(r, c, p);
    if (op == PTAC_OP_SCATTER_REDUCE)
        add_matrix(r, c, p->n, p->width);
    if (rng_chance(r, 70))
        test_output_in_place(c, PTAC_ROWS_TABLE);
    else
        test_output(c, PTAC_F32, 2, (const int64_t[]){p->n_rows, p->width}, false);
}

static void make_reduce(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_SCATTER_REDUCE);
}

static void make_scatter(rng *r, test_call *c)
{
    make(r, c, PTAC_OP_SCATTER);
}

GENERATOR(of_reduce, .op = PTAC_OP_SCATTER_REDUCE, .make = make_reduce)
GENERATOR(of_scatter, .op = PTAC_OP_SCATTER, .make = make_scatter)
