/*
 * gen_attention.c - random attention: heads that lie inside positions or the other way
 * round, keys that several heads share, masks of every kind.
 */
#include "checkrows.h"
#include "ops/attention/attention.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_WORK = 1 << 19, /* multiply-adds of a case */
};

static ptac_attention *params_of(test_call *c)
{
    return (ptac_attention *)c->params;
}

static void draw_sizes(rng *r, ptac_attention *p)
{
    do {
        p->batch = rng_between(r, 1, 2);
        p->key_heads = rng_between(r, 1, 3);
        p->heads = p->key_heads * RNG_PICK(r, 1, 1, 2, 4);
        p->n_queries = rng_chance(r, 30) ? rng_between(r, 1, 5) : rng_length(r, 200);
        p->n_keys = 1 + rng_length(r, 300);
        p->d = rng_chance(r, 50) ? RNG_PICK(r, 8, 32, 64, 128) : rng_length(r, 150);
    } while (p->batch * p->heads * p->n_queries * p->n_keys * p->d > MOST_WORK);
    p->scale = rng_chance(r, 80) ? 1 / sqrtf((float)p->d) : 0.3f;
    p->is_causal = rng_chance(r, 30);
}

/* Positions outside, heads inside: as projections leave them. */
static void turn(const int64_t *sizes, int64_t *strides)
{
    strides[1] = sizes[3];
    strides[2] = sizes[1] * sizes[3];
    strides[0] = sizes[2] * strides[2];
}

static void tensor(rng *r, test_call *c, int i, int64_t heads, int64_t n, double size)
{
    const ptac_attention *p = params_of(c);
    const int64_t sizes[4] = {p->batch, heads, n, p->d};
    float *values = test_input(c, PTAC_F32, 4, sizes, false);

    fill_smooth(r, PTAC_F32, values, c->call.inputs[i].n_elements, size);
    if (rng_chance(r, 60))
        turn(sizes, c->strides[i]);
}

static void result(rng *r, test_call *c, int i, int64_t heads, int64_t n)
{
    const ptac_attention *p = params_of(c);
    const int64_t sizes[4] = {p->batch, heads, n, p->d};

    test_output(c, PTAC_F32, 4, sizes, false);
    if (rng_chance(r, 60))
        turn(sizes, c->strides[PTAC_MAX_INPUTS + i]);
}

/* Added to scores, in part -inf, which may be all that a query has. */
static const char *mask(rng *r, test_call *c)
{
    const int i = ptac_attention_mask_input(c->call.op);
    const ptac_attention *p = params_of(c);
    const int kind = (int)rng_below(r, 8);
    const bool is_flat = kind < 2;
    int64_t sizes[4] = {p->batch, p->heads, p->n_queries, p->n_keys};
    float *values;
    int64_t n;

    if (kind > 5)
        return "no mask";
    for (int k = 0; k < 4; k++)
        if (rng_chance(r, k < 2 ? 60 : 30))
            sizes[k] = 1;
    values =
        test_input(c, PTAC_F32, is_flat ? 2 : 4, is_flat ? sizes + 2 : sizes, false);
    n = c->call.inputs[i].n_elements;
    fill_smooth(r, PTAC_F32, values, n, 3);
    if (rng_chance(r, 60))
        for (int64_t k = 0; k < n; k++)
            if (rng_chance(r, 30))
                values[k] = -INFINITY;
    if (is_flat && rng_chance(r, 30)) {
        c->strides[i][0] = 1;
        c->strides[i][1] = sizes[2];
    }
    return is_flat ? "a flat mask" : "a mask";
}

/* Of attention_dropout: a third of the weights, or none of them, is dropped. */
static void kept(rng *r, test_call *c)
{
    ptac_attention *p = params_of(c);
    const int64_t sizes[4] = {p->batch, p->heads, p->n_queries, p->n_keys};
    const int percent = rng_chance(r, 20) ? 100 : 67;
    float *values;

    if (!ptac_attention_drops(c->call.op))
        return;
    p->keep = rng_chance(r, 50) ? 0.9f : 0.67f;
    values = test_input(c, PTAC_F32, 4, sizes, false);
    for (int64_t i = 0; i < sizes[0] * sizes[1] * sizes[2] * sizes[3]; i++)
        values[i] = rng_chance(r, percent);
}

static void note(test_call *c, const char *with)
{
    const ptac_attention *p = params_of(c);

    snprintf(c->note, sizeof c->note,
             "batch %lld, heads %lld (%lld), queries %lld, keys %lld, d %lld, %s%s",
             (long long)p->batch, (long long)p->heads, (long long)p->key_heads,
             (long long)p->n_queries, (long long)p->n_keys, (long long)p->d, with,
             p->is_causal ? ", causal" : "");
}

/* The first key has a value that is not finite; each query meets it. */
static void spoil(test_call *c, int input, float value)
{
    ((float *)c->buffers[c->input_buffers[input]].content)[0] = value;
    c->must_be_given_back = true;
}

static void make_forward_of(rng *r, test_call *c, ptac_op op)
{
    ptac_attention *p = params_of(c);
    const char *with;

    c->call.op = op;
    draw_sizes(r, p);
    tensor(r, c, PTAC_ATTENTION_QUERY, p->heads, p->n_queries, 2);
    tensor(r, c, PTAC_ATTENTION_KEY, p->key_heads, p->n_keys, 2);
    tensor(r, c, PTAC_ATTENTION_VALUE, p->key_heads, p->n_keys, 1);
    kept(r, c);
    with = mask(r, c);
    result(r, c, PTAC_ATTENTION_RESULT, p->heads, p->n_queries);
    test_output(c, PTAC_F32, 3, (const int64_t[]){p->batch, p->heads, p->n_queries},
                false);
    if (rng_chance(r, 10))
        spoil(c, PTAC_ATTENTION_VALUE, rng_chance(r, 50) ? NAN : INFINITY);
    note(c, with);
}

/* Weights are at most 1 or so; the result need not be the one that they give. */
static void make_backward_of(rng *r, test_call *c, ptac_op op)
{
    ptac_attention *p = params_of(c);
    float *log_sums;
    const char *with;

    c->call.op = op;
    draw_sizes(r, p);
    tensor(r, c, PTAC_ATTENTION_QUERY, p->heads, p->n_queries, 1);
    tensor(r, c, PTAC_ATTENTION_KEY, p->key_heads, p->n_keys, 1);
    tensor(r, c, PTAC_ATTENTION_VALUE, p->key_heads, p->n_keys, 1);
    tensor(r, c, PTAC_ATTENTION_OUT, p->heads, p->n_queries, 1);
    tensor(r, c, PTAC_ATTENTION_GRAD, p->heads, p->n_queries, 1);
    log_sums = test_input(c, PTAC_F32, 3,
                          (const int64_t[]){p->batch, p->heads, p->n_queries}, false);
    fill_smooth(r, PTAC_F32, log_sums,
                c->call.inputs[PTAC_ATTENTION_LOG_SUMS].n_elements, 1);
    for (int64_t i = 0; i < c->call.inputs[PTAC_ATTENTION_LOG_SUMS].n_elements; i++)
        log_sums[i] += 5;
    kept(r, c);
    with = mask(r, c);
    result(r, c, PTAC_ATTENTION_QUERY, p->heads, p->n_queries);
    result(r, c, PTAC_ATTENTION_KEY, p->key_heads, p->n_keys);
    result(r, c, PTAC_ATTENTION_VALUE, p->key_heads, p->n_keys);
    if (rng_chance(r, 10))
        spoil(c, PTAC_ATTENTION_GRAD, rng_chance(r, 50) ? NAN : INFINITY);
    note(c, with);
}

#define MAKER(name, direction, op)                                                     \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_##direction##_of(r, c, PTAC_OP_##op);                                     \
    }
MAKER(attention, forward, ATTENTION)
MAKER(gradients, backward, ATTENTION_BACKWARD)
MAKER(dropout, forward, ATTENTION_DROPOUT)
MAKER(dropout_gradients, backward, ATTENTION_DROPOUT_BACKWARD)

/* Results are means of values below 1, which may cancel; log_sums are not small. */
static void scale_forward(test_call *c)
{
    for (int i = 0; i < 2; i++)
        c->buffers[c->output_buffers[i]].least_scale = 1;
}

/* Of a sum: the root of its terms' number, times the largest of them. */
static void scale_backward(test_call *c)
{
    const ptac_attention *p = params_of(c);
    const double slope = 2 * sqrt((double)p->d);
    const double shared = (double)(p->heads / p->key_heads);
    const double queries = sqrt((double)p->n_queries * shared);

    c->buffers[c->output_buffers[0]].least_scale =
        p->scale * slope * sqrt((double)p->n_keys);
    c->buffers[c->output_buffers[1]].least_scale = p->scale * slope * queries;
    c->buffers[c->output_buffers[2]].least_scale = queries;
}

/*
 * A score is a sum of up to 150 terms of 4 and errs by some dozens of roundings of 1,
 * of which a weight has as many; sums of weights average them.
 */
#define ATTENTION(id, maker, direction)                                                \
    GENERATOR(generator_of_##id, .op = PTAC_OP_##id, .make = make_##maker,             \
              .scale = scale_##direction, .roundings = 128)
ATTENTION(ATTENTION, attention, forward)
ATTENTION(ATTENTION_BACKWARD, gradients, backward)
ATTENTION(ATTENTION_DROPOUT, dropout, forward)
ATTENTION(ATTENTION_DROPOUT_BACKWARD, dropout_gradients, backward)
