/*
 * gen_dropout.c - random calls of dropout, alone or before a sum, and of its gradient.
 */
#include "gen_engine.h"

#include "ops/random/dropout.h"

#include <stdio.h>

enum {
    MOST_ELEMENTS = 4000,
};

static ptac_dropout *params_of(test_call *c)
{
    return (ptac_dropout *)c->params;
}

static float *add_rows(test_call *c, int64_t n)
{
    float *x = test_input(c, PTAC_F32, 1, &n, false);

    test_also_16_bits(c);
    return x;
}

static void add_outputs(test_call *c, int64_t n)
{
    test_output(c, PTAC_F32, 1, &n, false);
    test_also_16_bits(c);
    test_output(c, PTAC_OTHER_DTYPE, 1, &n, false);
}

static void note(test_call *c, int64_t n)
{
    const ptac_dropout *p = params_of(c);

    snprintf(c->note, sizeof c->note,
             "%lld elements, keep %g, vector %d, %d processors of %d threads%s",
             (long long)n, p->keep, p->vector, p->n_processors, p->n_threads,
             p->random.is_captured ? ", captured" : "");
}

/* Seed and offset by value, or where a graph's replay puts them. */
static void add_state(rng *r, test_call *c)
{
    ptac_philox_state *state = &params_of(c)->random;
    const unsigned long long seed = rng_next(r);
    const unsigned long long offset = 4 * (rng_next(r) >> 4);

    state->is_captured = rng_chance(r, 40);
    if (state->is_captured) {
        *(uint64_t *)test_memory(c, READS, PTAC_I64, 1) = seed;
        *(uint64_t *)test_memory(c, READS, PTAC_I64, 1) = offset;
        state->offset_in_graph = 4 * (unsigned long long)rng_below(r, 1000);
    } else {
        state->seed.value = seed;
        state->offset.value = offset;
    }
}

static void place(test_call *c)
{
    ptac_philox_state *state = &params_of(c)->random;

    if (!params_of(c)->n_processors)
        params_of(c)->engine = c->buffers[c->n_buffers - 1].data;
    if (!state->is_captured)
        return;
    state->seed.address = c->buffers[c->n_buffers - 2].data;
    state->offset.address = c->buffers[c->n_buffers - 1].data;
}

/* Grids that all elements fill once, or that go over them several times. */
static int64_t random_params(rng *r, test_call *c)
{
    static const double keeps[] = {0.9, 0.5, 0.999, 0.1, 1};
    ptac_dropout *p = params_of(c);

    p->keep = keeps[rng_below(r, 5)];
    p->vector = (int)RNG_PICK(r, 1, 2, 4, 8, 8);
    p->n_processors = (int)rng_between(r, 1, 3);
    p->n_threads = (int)RNG_PICK(r, 256, 1024, 1536);
    return p->vector * rng_length(r, MOST_ELEMENTS / p->vector);
}

static void make(rng *r, test_call *c, ptac_op op)
{
    const int64_t n = random_params(r, c);
    float *x = add_rows(c, n);

    c->call.op = op;
    if (op == PTAC_OP_DROPOUT_ADD) {
        fill_smooth(r, PTAC_F32, x, n, 4);
        fill_smooth(r, PTAC_F32, add_rows(c, n), n, 4);
    } else {
        fill_reals(r, PTAC_F32, x, n);
        test_no_input(c);
    }
    add_outputs(c, n);
    add_state(r, c);
    note(c, n);
}

/* On the CPU, by an engine; some without a mask, some in place. */
static void make_on_cpu(rng *r, test_call *c, ptac_op op)
{
    const int64_t n = random_draws(r);

    c->call.op = op;
    params_of(c)->keep = random_probability(r);
    fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n, false), n);
    if (op == PTAC_OP_DROPOUT_ADD)
        fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n, false), n);
    else
        test_no_input(c);
    if (rng_chance(r, 30))
        test_output_in_place(c, PTAC_DROPOUT_X);
    else
        test_output(c, PTAC_F32, 1, &n, false);
    if (rng_chance(r, 40))
        test_no_output(c);
    else
        test_output(c, PTAC_OTHER_DTYPE, 1, &n, false);
    add_engine(r, c, params_of(c)->keep);
    snprintf(c->note, sizeof c->note, "%lld elements, keep %a, by an engine",
             (long long)n, params_of(c)->keep);
}

static void make_either(rng *r, test_call *c, ptac_op op)
{
    if (rng_chance(r, 50))
        make_on_cpu(r, c, op);
    else
        make(r, c, op);
}

static void make_dropout(rng *r, test_call *c)
{
    make_either(r, c, PTAC_OP_DROPOUT);
}

static void make_dropout_add(rng *r, test_call *c)
{
    make_either(r, c, PTAC_OP_DROPOUT_ADD);
}

static void add_gradient(rng *r, test_call *c, int64_t n)
{
    unsigned char *mask;

    c->call.op = PTAC_OP_DROPOUT_BACKWARD;
    ((ptac_dropout_backward *)c->params)->scale = rng_chance(r, 90) ? 1 / 0.9 : 0;
    fill_reals(r, PTAC_F32, add_rows(c, n), n);
    mask = test_input(c, PTAC_OTHER_DTYPE, 1, &n, false);
    for (int64_t i = 0; i < n; i++)
        mask[i] = rng_chance(r, 80);
    test_output(c, PTAC_F32, 1, &n, false);
    test_also_16_bits(c);
    snprintf(c->note, sizeof c->note, "%lld elements", (long long)n);
}

static void make_backward(rng *r, test_call *c)
{
    add_gradient(r, c,
                 rng_chance(r, 40) ? 8 * rng_length(r, 500) : rng_length(r, 3000));
}

/* 100,000 elements, more than the grid takes at once. */
static bool typical(int i, rng *r, test_call *c, ptac_op op)
{
    const int64_t n = 128 * 768;
    const ptac_dropout params = {
        .keep = 0.9, .vector = i == 0 ? 4 : 8, .n_processors = 4, .n_threads = 2048};

    if (i > 1)
        return false;
    *params_of(c) = params;
    c->call.op = op;
    fill_smooth(r, PTAC_F32, add_rows(c, n), n, 1);
    if (op == PTAC_OP_DROPOUT_ADD)
        fill_smooth(r, PTAC_F32, add_rows(c, n), n, 1);
    else
        test_no_input(c);
    add_outputs(c, n);
    note(c, n);
    return true;
}

static bool typical_dropout(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_DROPOUT);
}

static bool typical_dropout_add(int i, rng *r, test_call *c)
{
    return typical(i, r, c, PTAC_OP_DROPOUT_ADD);
}

static bool typical_backward(int i, rng *r, test_call *c)
{
    if (i > 0)
        return false;
    add_gradient(r, c, 128 * 768);
    return true;
}

GENERATOR(dropout, .op = PTAC_OP_DROPOUT, .make = make_dropout, .place = place,
          .typical = typical_dropout)

/* In float32 the row does what "scalar" does, to 16 bits its sum is rounded. */
GENERATOR(dropout_add, .op = PTAC_OP_DROPOUT_ADD, .make = make_dropout_add,
          .place = place, .roundings = 1, .typical = typical_dropout_add)

GENERATOR(backward, .op = PTAC_OP_DROPOUT_BACKWARD, .make = make_backward,
          .typical = typical_backward)
