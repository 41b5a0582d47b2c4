/*
 * gen_recurrent.c - random calls of recurrent layers and their gradients.
 */
#include "checkrows.h"

#include "ops/recurrent/recurrent.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_STEPS = 6,
    MOST_ROWS = 20,
    MOST_TERMS = 300,
    MOST_WORK = 1 << 19, /* multiply-adds */
};

typedef struct sizes {
    int64_t n_steps, n_rows, n_in, n_hidden;
    int n_gates;
    int64_t by_step[2]; /* leading sizes of what has a row for each row of each step */
    bool is_packed;
} sizes;

/* Steps of a packed sequence, each of as many rows as the one before it, or fewer. */
static void pack(rng *r, test_call *c, sizes *s)
{
    ptac_recurrent *params = (ptac_recurrent *)c->params;
    int64_t *starts = test_memory(c, READS, PTAC_I64, s->n_steps + 1);
    int64_t n = s->n_rows;

    starts[0] = 0;
    for (int64_t t = 0; t < s->n_steps; t++) {
        starts[t + 1] = starts[t] + n;
        if (rng_chance(r, 60))
            n = rng_between(r, 1, (int)n);
    }
    params->starts = starts;
    params->n_steps = s->n_steps;
    s->is_packed = true;
    s->by_step[0] = 1;
    s->by_step[1] = starts[s->n_steps];
}

/* The memory of starts comes first. */
static void place(test_call *c)
{
    ptac_recurrent *params = (ptac_recurrent *)c->params;

    if (params->starts)
        params->starts = c->buffers[0].data;
}

static sizes random_sizes(rng *r, test_call *c)
{
    sizes s = {
        .n_steps = rng_between(r, 1, MOST_STEPS),
        .n_rows = rng_length(r, MOST_ROWS),
        .n_in = rng_length(r, rng_chance(r, 20) ? MOST_TERMS : 30),
        .n_gates = ptac_recurrent_gates(&c->call),
    };
    const int64_t most = MOST_WORK / (s.n_steps * s.n_rows * s.n_gates);

    s.n_hidden = rng_length(r, rng_chance(r, 20) ? MOST_TERMS : 80);
    while (s.n_hidden > 1 && (s.n_in + s.n_hidden) * s.n_hidden > most)
        s.n_hidden /= 2;
    ((ptac_recurrent *)c->params)->is_reverse = rng_chance(r, 40);
    s.by_step[0] = s.n_steps;
    s.by_step[1] = s.n_rows;
    if (rng_chance(r, 30))
        pack(r, c, &s);
    snprintf(c->note, sizeof c->note, "%lld steps%s%s of %lld rows, %lld to %lld units",
             (long long)s.n_steps,
             ((ptac_recurrent *)c->params)->is_reverse ? " back" : "",
             s.is_packed ? ", packed," : "", (long long)s.n_rows, (long long)s.n_in,
             (long long)s.n_hidden);
    return s;
}

static float *add(rng *r, test_call *c, int n_dims, const int64_t *dims, double scale)
{
    float *x = test_input(c, PTAC_F32, n_dims, dims, false);
    int64_t n = 1;

    for (int i = 0; i < n_dims; i++)
        n *= dims[i];
    fill_smooth(r, PTAC_F32, x, n, scale);
    return x;
}

/* Results below one come from sums of larger numbers, whose rounding they have. */
static void add_output(test_call *c, int n_dims, const int64_t *dims)
{
    test_output(c, PTAC_F32, n_dims, dims, false);
    c->buffers[c->n_buffers - 1].least_scale = 1;
}

/* Rows of the batch before steps, as batch_first has them; some have gaps. */
static void turn(rng *r, test_call *c, int input, const sizes *s, int64_t width)
{
    if (s->is_packed || !rng_chance(r, 30))
        return;
    c->strides[input][0] = width;
    c->strides[input][1] = s->n_steps * width;
}

static void make(rng *r, test_call *c, ptac_op op)
{
    c->call.op = op;

    const sizes s = random_sizes(r, c);
    const int64_t columns = s.n_gates * s.n_hidden, n = s.n_hidden;
    const int64_t of_x[] = {s.by_step[0], s.by_step[1], s.n_in},
                  state[] = {s.n_rows, n};
    const int64_t w_ih[] = {columns, s.n_in}, w_hh[] = {columns, n};
    const int64_t y[] = {s.by_step[0], s.by_step[1], n},
                  kept[] = {s.by_step[0], s.by_step[1], 4 * n};
    float *x = add(r, c, 3, of_x, 2);

    turn(r, c, PTAC_RECURRENT_X, &s, s.n_in);
    if (rng_chance(r, 15))
        x[rng_below(r, s.by_step[0] * s.by_step[1] * s.n_in)] =
            rng_chance(r, 50) ? NAN : INFINITY;
    add(r, c, 2, w_ih, 2 / sqrt((double)s.n_in));
    add(r, c, 2, w_hh, 1 / sqrt((double)n));
    for (int i = 0; i < 2; i++) {
        if (rng_chance(r, 80))
            add(r, c, 1, &columns, 1);
        else
            test_no_input(c);
    }
    add(r, c, 2, state, 1);
    if (ptac_recurrent_is_lstm(&c->call))
        add(r, c, 2, state, 2);
    else
        test_no_input(c);
    add_output(c, 3, y);
    add_output(c, 2, state);
    if (ptac_recurrent_is_lstm(&c->call))
        add_output(c, 2, state);
    else
        test_no_output(c);
    if (rng_chance(r, 30))
        return;
    if (ptac_recurrent_gates(&c->call) == PTAC_RNN_GATES)
        test_no_output(c);
    else
        add_output(c, 3, kept);
    if (ptac_recurrent_is_lstm(&c->call))
        add_output(c, 3, y);
    else
        test_no_output(c);
}

/* Gates lie between 0 and 1, or between -1 and 1. */
static void add_gates(rng *r, test_call *c, const sizes *s)
{
    const int64_t kept[] = {s->by_step[0], s->by_step[1], 4 * s->n_hidden};
    float *gates = add(r, c, 3, kept, 1);

    for (int64_t i = 0; i < kept[0] * kept[1] * kept[2]; i++)
        if (i / s->n_hidden % 4 < 2 || i % 2)
            gates[i] = fabsf(gates[i]);
}

static void add_or_not(rng *r, test_call *c, int n_dims, const int64_t *dims)
{
    if (rng_chance(r, 75))
        add(r, c, n_dims, dims, 1);
    else
        test_no_input(c);
}

static void make_backward(rng *r, test_call *c, ptac_op op)
{
    const bool is_gru = op == PTAC_OP_GRU_BACKWARD;
    const bool is_lstm = op == PTAC_OP_LSTM_BACKWARD;

    c->call.op = op;

    const sizes s = random_sizes(r, c);
    const int64_t columns = s.n_gates * s.n_hidden, n = s.n_hidden;
    const int64_t w_hh[] = {columns, n}, state[] = {s.n_rows, n};
    const int64_t y[] = {s.by_step[0], s.by_step[1], n};
    const int64_t sums[] = {s.by_step[0], s.by_step[1], columns};

    add(r, c, 2, w_hh, 1 / sqrt((double)n));
    add(r, c, 2, state, 1);
    add(r, c, 3, y, 1);
    if (s.n_gates == PTAC_RNN_GATES)
        add(r, c, 3, y, 1);
    else
        add_gates(r, c, &s);
    add_or_not(r, c, 3, y);
    if (c->call.inputs[PTAC_RECURRENT_GRAD_Y].n_elements)
        turn(r, c, PTAC_RECURRENT_GRAD_Y, &s, n);
    add_or_not(r, c, 2, state);
    if (!is_lstm)
        test_no_input(c);
    else
        add_or_not(r, c, 2, state);
    add_output(c, 3, sums);
    add_output(c, 1, &columns);
    add_output(c, 2, state);
    if (is_gru) {
        test_no_output(c);
        add_output(c, 3, sums);
        add_output(c, 1, &columns);
    } else {
        if (is_lstm)
            add_output(c, 2, state);
        else
            test_no_output(c);
        test_no_output(c);
        test_no_output(c);
    }
}

/*
 * A sum of at most 600 products of numbers around one is off by some ten roundings;
 * what a state is off by comes back in the next step, weakened by the gates.
 */
#define OPERATOR(name, id, make_call)                                                  \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_call(r, c, PTAC_OP_##id);                                                 \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, .place = place,           \
              .roundings = 40)
#define LAYER(name, id)                                                                \
    OPERATOR(name, id, make)                                                           \
    OPERATOR(name##_backward, id##_BACKWARD, make_backward)

LAYER(lstm, LSTM)
LAYER(gru, GRU)
LAYER(rnn_tanh, RNN_TANH)
LAYER(rnn_relu, RNN_RELU)
