/*
 * gen_bernoulli.c - random calls of bernoulli_(), from engines in all states.
 */
#include "gen_engine.h"

#include "ops/random/bernoulli.h"

#include <stdio.h>

static void place(test_call *c)
{
    ((ptac_bernoulli *)c->params)->engine = c->buffers[c->n_buffers - 1].data;
}

static void make(rng *r, test_call *c)
{
    ptac_bernoulli *p = (ptac_bernoulli *)c->params;
    const int64_t n = random_draws(r);

    c->call.op = PTAC_OP_BERNOULLI;
    test_input(c, PTAC_F32, 1, &n, false);
    test_output_in_place(c, 0);
    p->p = rng_chance(r, 5) ? (double)rng_chance(r, 50) : random_probability(r);
    add_engine(r, c, p->p);
    snprintf(c->note, sizeof c->note, "%lld elements, p %a", (long long)n, p->p);
}

GENERATOR(bernoulli, .op = PTAC_OP_BERNOULLI, .make = make, .place = place)
