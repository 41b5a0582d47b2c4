/*
 * gen_stack.c - random calls of stacking.
 */
#include "checkrows.h"
#include "ops/copy/stack.h"

#include <stdio.h>

static void make(rng *r, test_call *c)
{
    const int n_tensors = (int)rng_between(r, 2, PTAC_MAX_INPUTS);
    const int64_t n = rng_chance(r, 5) ? rng_length(r, 30000) : rng_length(r, 500);
    const int64_t sizes[] = {n, n_tensors};

    c->call.op = PTAC_OP_STACK;
    for (int i = 0; i < n_tensors; i++)
        fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n, false), n);
    test_output(c, PTAC_F32, 2, sizes, false);
    snprintf(c->note, sizeof c->note, "%d tensors of %lld elements", n_tensors,
             (long long)n);
}

GENERATOR(stack, .op = PTAC_OP_STACK, .make = make, .nan_bits = 1u << PTAC_F32)
