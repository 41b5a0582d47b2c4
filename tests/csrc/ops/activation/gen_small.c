/*
 * gen_small.c - random calls of small_pointwise.
 */
#include "checkrows.h"
#include "ops/pointwise/small.h"

#include <stdio.h>

static void make_small(rng *r, test_call *c)
{
    static const char *const names[] = {"relu",       "add",        "sub",
                                        "mul",        "div",        "add_number",
                                        "sub_number", "mul_number", "div_number"};
    ptac_small *p = (ptac_small *)c->params;
    const int64_t n =
        rng_chance(r, 10) ? rng_length(r, PTAC_SMALL_MOST) : rng_length(r, 300);
    int n_inputs;

    p->kind = (ptac_small_kind)rng_between(r, 0, PTAC_SMALL_DIV_NUMBER);
    fill_reals(r, PTAC_F32, &p->number, 1);
    n_inputs = p->kind >= PTAC_SMALL_ADD && p->kind <= PTAC_SMALL_DIV ? 2 : 1;
    c->call.op = PTAC_OP_SMALL_POINTWISE;
    for (int i = 0; i < n_inputs; i++)
        fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n, false), n);
    test_output(c, PTAC_F32, 1, &n, false);
    snprintf(c->note, sizeof c->note, "%s of %lld elements", names[p->kind],
             (long long)n);
}

GENERATOR(small, .op = PTAC_OP_SMALL_POINTWISE, .make = make_small)
