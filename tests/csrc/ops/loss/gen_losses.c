/*
 * gen_losses.c - random calls of losses of each element and of their gradients.
 */
#include "checkrows.h"
#include "ops/loss/losses.h"

#include <math.h>
#include <stdio.h>

static ptac_loss *loss_of(test_call *c)
{
    return (ptac_loss *)c->params;
}

static bool is_bce(ptac_op op)
{
    return op == PTAC_OP_BINARY_CROSS_ENTROPY ||
           op == PTAC_OP_BINARY_CROSS_ENTROPY_BACKWARD;
}

/* Probabilities, among them the ends and what is smaller than normal numbers. */
static void fill_probabilities(rng *r, float *x, int64_t n)
{
    fill_smooth(r, PTAC_F32, x, n, 1);
    for (int64_t i = 0; i < n; i++) {
        x[i] = fminf(1, fabsf(x[i]));
        if (rng_chance(r, 1))
            x[i] = (float)RNG_PICK(r, 0, 1);
        else if (rng_chance(r, 2))
            x[i] = ldexpf(x[i], -(int)rng_between(r, 0, 149));
    }
}

static void fill(rng *r, test_call *c, float *x, int64_t n)
{
    if (is_bce(c->call.op))
        fill_probabilities(r, x, n);
    else
        fill_smooth(r, PTAC_F32, x, n, (double)RNG_PICK(r, 1, 1, 4, 40));
}

static int64_t random_length(rng *r)
{
    return rng_chance(r, 4) ? rng_length(r, 80000) : rng_length(r, 2000);
}

static void set_params(rng *r, test_call *c, int64_t n)
{
    ptac_loss *p = loss_of(c);

    p->reduction = (ptac_reduction)rng_below(r, 3);
    p->beta = ldexp(1, (int)RNG_PICK(r, 0, 0, 1, -2));
    snprintf(c->note, sizeof c->note, "%lld elements, reduction %d, beta %g",
             (long long)n, (int)p->reduction, p->beta);
}

static void make_loss(rng *r, test_call *c, ptac_op op)
{
    const int64_t n = random_length(r);
    float *x, *t;

    c->call.op = op;
    set_params(r, c, n);
    x = test_input(c, PTAC_F32, 1, &n, false);
    t = test_input(c, PTAC_F32, 1, &n, false);
    fill(r, c, x, n);
    fill(r, c, t, n);
    if (rng_chance(r, 8)) {
        t[rng_below(r, n)] = rng_chance(r, 50) ? NAN : INFINITY;
        c->must_be_given_back = is_bce(op);
    }
    if (is_bce(op) && rng_chance(r, 5)) {
        x[rng_below(r, n)] = rng_chance(r, 50) ? NAN : rng_chance(r, 50) ? 1.5f : -1;
        c->must_be_given_back = true;
    } else if (rng_chance(r, 8) && !is_bce(op)) {
        x[rng_below(r, n)] = rng_chance(r, 50) ? NAN : INFINITY;
    }
    test_output(c, PTAC_F32, loss_of(c)->reduction == PTAC_LOSS_EACH, &n, false);
}

static void make_gradient(rng *r, test_call *c, ptac_op op)
{
    const int64_t n = random_length(r);
    float *grad, *x, *t;
    int64_t n_grads;

    c->call.op = op;
    set_params(r, c, n);
    n_grads = loss_of(c)->reduction == PTAC_LOSS_EACH ? n : 1;
    grad = test_input(c, PTAC_F32, n_grads > 1, &n, false);
    x = test_input(c, PTAC_F32, 1, &n, false);
    t = test_input(c, PTAC_F32, 1, &n, false);
    fill_smooth(r, PTAC_F32, grad, n_grads, 1);
    fill(r, c, x, n);
    fill(r, c, t, n);
    if (rng_chance(r, 8))
        x[rng_below(r, n)] = NAN;
    test_output(c, PTAC_F32, 1, &n, false);
}

/* What losses are made of: their two terms, or a sum of all. */
static void scale_loss(test_call *c)
{
    const float *x = c->call.inputs[PTAC_LOSS_X].data;
    const float *t = c->call.inputs[PTAC_LOSS_TARGET].data;
    const int64_t n = c->call.inputs[PTAC_LOSS_X].n_elements;
    double most = 0;

    for (int64_t i = 0; i < n; i++) {
        const double far = fmax(fabs((double)x[i]), fabs((double)t[i]));

        if (isfinite(far))
            most = fmax(most, far * (1 + far));
    }
    if (is_bce(c->call.op))
        most *= 100;
    if (loss_of(c)->reduction == PTAC_LOSS_SUM)
        most *= sqrt((double)n);
    c->buffers[c->output_buffers[0]].least_scale = most;
}

#define LOSS(name, id)                                                                 \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_loss(r, c, PTAC_OP_##id);                                                 \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, .scale = scale_loss,      \
              .roundings = 8)
#define GRADIENT(name, id, ...)                                                        \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_gradient(r, c, PTAC_OP_##id);                                             \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, __VA_ARGS__)

/* Logarithms err by 2 ulp, each term by two more; sums are rounded once in pairs. */
LOSS(mse_loss, MSE_LOSS)
LOSS(smooth_l1_loss, SMOOTH_L1_LOSS)
LOSS(binary_cross_entropy, BINARY_CROSS_ENTROPY)
LOSS(with_logits, BINARY_CROSS_ENTROPY_WITH_LOGITS)

GRADIENT(mse_gradient, MSE_LOSS_BACKWARD, .roundings = 0)
GRADIENT(smooth_l1_gradient, SMOOTH_L1_LOSS_BACKWARD, .roundings = 6)
GRADIENT(cross_entropy_gradient, BINARY_CROSS_ENTROPY_BACKWARD, .roundings = 10)
