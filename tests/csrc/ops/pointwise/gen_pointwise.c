/*
 * gen_pointwise.c - random calls of gated_act, add_act, bias_act and their gradients.
 */
#include "checkrows.h"
#include "ops/pointwise/pointwise.h"

#include <math.h>
#include <stdio.h>

typedef struct kind {
    int n_inputs, n_outputs;
} kind;

static kind kind_of(ptac_op op)
{
    switch (op) {
    case PTAC_OP_GATED_ACT_BACKWARD:
        return (kind){3, 2};
    case PTAC_OP_ADD_ACT_BACKWARD:
        return (kind){3, 1};
    case PTAC_OP_BIAS_ACT_BACKWARD:
        return (kind){3, 2};
    default:
        return (kind){2, 1};
    }
}

static void add_input(rng *r, test_call *c, int64_t n)
{
    float *x = test_input(c, PTAC_F32, 1, &n, false);

    test_also_16_bits(c);
    fill_smooth(r, PTAC_F32, x, n, 4);
}

static void build(rng *r, test_call *c, ptac_op op, int64_t n, ptac_act act)
{
    const kind k = kind_of(op);
    const bool goes_back_by_y = op == PTAC_OP_ADD_ACT_BACKWARD && act == PTAC_ACT_RELU;

    c->call.op = op;
    ((ptac_pointwise *)c->params)->activation = act;
    for (int i = 0; i < k.n_inputs; i++) {
        if (goes_back_by_y && i == PTAC_POINTWISE_GRAD_B)
            test_no_input(c);
        else
            add_input(r, c, n);
    }
    for (int i = 0; i < k.n_outputs; i++) {
        test_output(c, PTAC_F32, 1, &n, false);
        test_also_16_bits(c);
    }
    snprintf(c->note, sizeof c->note, "%lld elements, activation %d", (long long)n,
             (int)act);
}

static void make(rng *r, test_call *c, ptac_op op)
{
    const int64_t n = rng_chance(r, 50) ? 8 * rng_length(r, 400) : rng_length(r, 3000);

    build(r, c, op, n, (ptac_act)rng_between(r, PTAC_ACT_RELU, PTAC_N_ACTS - 1));
}

static double largest(const ptac_view *view)
{
    const float *data = view->data;
    double most = 0;

    for (int64_t i = 0; data && i < view->n_elements; i++)
        most = fmax(most, fabs((double)data[i]));
    return most;
}

/* Of the products and sums before they cancel, or meet a slope that is nearly 0. */
static void scale(test_call *c)
{
    double of_all = 1;

    for (int i = 0; i < c->call.n_inputs; i++)
        of_all *= fmax(1, largest(&c->call.inputs[i]));
    for (int i = 0; i < c->call.n_outputs; i++)
        c->buffers[c->output_buffers[i]].least_scale = of_all;
}

/* A feed-forward layer of 32 tokens. */
static bool typical(int i, rng *r, test_call *c, ptac_op op)
{
    static const ptac_act acts[] = {PTAC_ACT_SILU, PTAC_ACT_RELU};

    if (i > 1)
        return false;
    build(r, c, op, 32 * 2816, acts[i]);
    return true;
}

/*
 * exp() and erfc() err by some u of what they give; slopes are sums of three such
 * numbers times z, at most 8: with the products' own roundings, below 64.
 */
#define POINTWISE(name, id)                                                            \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make(r, c, PTAC_OP_##id);                                                      \
    }                                                                                  \
    static bool typical_##name(int i, rng *r, test_call *c)                            \
    {                                                                                  \
        return typical(i, r, c, PTAC_OP_##id);                                         \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, .scale = scale,           \
              .roundings = 64, .typical = typical_##name)

POINTWISE(gated_act, GATED_ACT)
POINTWISE(gated_act_backward, GATED_ACT_BACKWARD)
POINTWISE(add_act, ADD_ACT)
POINTWISE(add_act_backward, ADD_ACT_BACKWARD)

static void add_plain(rng *r, test_call *c, int64_t n)
{
    fill_smooth(r, PTAC_F32, test_input(c, PTAC_F32, 1, &n, false), n, 4);
}

/* Of rows, with a bias that all of them have. */
static void build_bias(rng *r, test_call *c, ptac_op op)
{
    const bool is_gradient = op == PTAC_OP_BIAS_ACT_BACKWARD;
    const int64_t width = rng_length(r, 1100);
    const int64_t n = width * rng_length(r, 4000 / width + 1);
    const ptac_act act = (ptac_act)rng_between(r, PTAC_ACT_RELU, PTAC_N_ACTS - 1);

    c->call.op = op;
    ((ptac_pointwise *)c->params)->activation = act;
    if (is_gradient)
        add_plain(r, c, n);
    add_plain(r, c, n);
    add_plain(r, c, width);
    test_output(c, PTAC_F32, 1, &n, false);
    if (is_gradient && rng_chance(r, 30))
        test_no_output(c);
    else if (is_gradient)
        test_output(c, PTAC_F32, 1, &width, false);
    snprintf(c->note, sizeof c->note, "%lld elements in rows of %lld, activation %d",
             (long long)n, (long long)width, (int)act);
}

static void make_bias_act(rng *r, test_call *c)
{
    build_bias(r, c, PTAC_OP_BIAS_ACT);
}

static void make_bias_act_backward(rng *r, test_call *c)
{
    build_bias(r, c, PTAC_OP_BIAS_ACT_BACKWARD);
}

/* Sums are of up to 4000 rows, in float over 32 of them. */
static void scale_bias(test_call *c)
{
    scale(c);
    if (c->call.n_outputs > 1 && c->call.outputs[1].n_elements > 0)
        c->buffers[c->output_buffers[1]].least_scale *=
            (double)c->call.inputs[0].n_elements /
            (double)c->call.outputs[1].n_elements;
}

GENERATOR(bias_act, .op = PTAC_OP_BIAS_ACT, .make = make_bias_act, .scale = scale,
          .roundings = 64)
GENERATOR(bias_act_backward, .op = PTAC_OP_BIAS_ACT_BACKWARD,
          .make = make_bias_act_backward, .scale = scale_bias, .roundings = 64)
