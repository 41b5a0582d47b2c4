/*
 * gen_cat.c - random calls that put tensors beside each other.
 */
#include "checkrows.h"
#include "ops/copy/cat.h"

#include <stdio.h>

static void make(rng *r, test_call *c)
{
    ptac_cat *p = (ptac_cat *)c->params;
    const bool is_woven = rng_chance(r, 40);
    const int n = (int)rng_between(r, 2, is_woven ? 6 : PTAC_MAX_INPUTS);

    c->call.op = PTAC_OP_CAT;
    p->rows = rng_length(r, 90);
    p->width = 0;
    for (int i = 0; i < n; i++) {
        p->widths[i] = is_woven ? 1 : rng_length(r, 40);
        p->strides[i] = is_woven || rng_chance(r, 50)
                            ? p->widths[i]
                            : rng_between(r, 1, p->widths[i] + 9);
        p->width += p->widths[i];

        const int64_t n_elements = (p->rows - 1) * p->strides[i] + p->widths[i];

        fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n_elements, false),
                   n_elements);
    }

    const int64_t sizes[] = {p->rows, p->width};

    test_output(c, PTAC_F32, 2, sizes, false);
    snprintf(c->note, sizeof c->note, "%d tensors, %lld rows of %lld", n,
             (long long)p->rows, (long long)p->width);
}

GENERATOR(cat, .op = PTAC_OP_CAT, .make = make, .nan_bits = 1u << PTAC_F32)
