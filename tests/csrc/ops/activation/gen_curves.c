/*
 * gen_curves.c - random calls of GELU, tanh, sigmoid, SiLU, Hardswish, Hardsigmoid and
 * of their gradients.
 */
#include "checkrows.h"
#include "ops/activation/activation.h"

#include <math.h>
#include <stdio.h>

/*
 * Ordinary numbers, and where exp() ends; now and then anything, but for gradients: an
 * infinite one is NaN where the slope is 0 in float, as in stock, and not in double.
 */
static void fill(rng *r, float *x, int64_t n, bool is_gradient)
{
    if (!is_gradient && rng_chance(r, 10))
        fill_reals(r, PTAC_F32, x, n);
    else
        fill_smooth(r, PTAC_F32, x, n, (double)RNG_PICK(r, 1, 4, 30, 120));
}

static void add_output(rng *r, test_call *c, int64_t n, bool may_be_in_place)
{
    if (may_be_in_place && rng_chance(r, 30))
        test_output_in_place(c, 0);
    else
        test_output(c, PTAC_F32, 1, &n, false);
}

/* Scales as ELU, CELU and SELU give them. */
static void make_elu(rng *r, test_call *c, ptac_op op, int n_inputs)
{
    const int64_t n = rng_chance(r, 3) ? rng_length(r, 60000) : rng_length(r, 2000);
    ptac_elu *p = (ptac_elu *)c->params;

    c->call.op = op;
    *p = (ptac_elu){.scale = rng_chance(r, 50) ? 1 : 1.05f,
                    .scale_below = rng_chance(r, 50) ? 1 : 1.75f,
                    .input_scale = rng_chance(r, 50) ? 1 : 0.6f,
                    .is_result = n_inputs > 1 && rng_chance(r, 50)};
    for (int i = 0; i < n_inputs; i++)
        fill(r, test_input(c, PTAC_F32, 1, &n, false), n, n_inputs > 1);
    add_output(r, c, n, n_inputs == 1);
    c->may_be_given_back = op == PTAC_OP_ELU_BACKWARD;
    snprintf(c->note, sizeof c->note, "%lld elements", (long long)n);
}

static void make(rng *r, test_call *c, ptac_op op, int n_inputs)
{
    const int64_t n = rng_chance(r, 3) ? rng_length(r, 60000) : rng_length(r, 2000);
    ptac_gelu *p = (ptac_gelu *)c->params;

    c->call.op = op;
    p->is_tanh = rng_chance(r, 50);
    p->is_onednn = rng_chance(r, 50);
    for (int i = 0; i < n_inputs; i++)
        fill(r, test_input(c, PTAC_F32, 1, &n, false), n, i + 1 < n_inputs);
    add_output(r, c, n, n_inputs == 1 && op != PTAC_OP_GELU);
    c->may_be_given_back = op == PTAC_OP_HARDSWISH_BACKWARD;
    snprintf(c->note, sizeof c->note, "%lld elements%s", (long long)n,
             p->is_tanh ? ", by tanh" : "");
}

/* What a gradient is made of: slopes are near 1 at most. */
static void scale(test_call *c)
{
    const float *grad = c->call.inputs[PTAC_MISH_GRAD].data;
    double most = 0;

    for (int64_t i = 0; i < c->call.inputs[0].n_elements; i++)
        if (isfinite(grad[i]))
            most = fmax(most, fabs((double)grad[i]));
    c->buffers[c->output_buffers[0]].least_scale = most;
}

/* GELU's absolute error is |x| times that of the normal distribution, 2^-23. */
static void scale_gelu(test_call *c)
{
    const float *x = c->call.inputs[0].data;
    double most = 0;

    for (int64_t i = 0; i < c->call.inputs[0].n_elements; i++)
        if (isfinite(x[i]))
            most = fmax(most, fmin(fabs((double)x[i]), 6));
    c->buffers[c->output_buffers[0]].least_scale = most;
}

/* Beyond -88, where exp() overflows, results are 0 or nearly so. */
static void scale_sigmoid(test_call *c)
{
    c->buffers[c->output_buffers[0]].least_scale = 1e-30;
}

#define CURVE(name, id, ...)                                                           \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make(r, c, PTAC_OP_##id, 1);                                                   \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, __VA_ARGS__)
#define GRADIENT(name, id, ...)                                                        \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make(r, c, PTAC_OP_##id, 2);                                                   \
    }                                                                                  \
    GENERATOR(name, .op = PTAC_OP_##id, .make = make_##name, .scale = scale,           \
              __VA_ARGS__)

/*
 * The functions of quick_tpl.h err by 3 ulp, of which the largest result's is 2 u, and
 * a product follows. GELU by tanh has an argument of sigmoid() that errs by 2 u, times
 * at most 10 where the result is not nearly 0 or x.
 */
CURVE(gelu, GELU, .scale = scale_gelu, .roundings = 30)
CURVE(tangent, TANH, .roundings = 6)
CURVE(sigmoid, SIGMOID, .scale = scale_sigmoid, .roundings = 6)
CURVE(silu, SILU, .scale = scale_sigmoid, .roundings = 8)
CURVE(hardswish, HARDSWISH, .roundings = 4)
CURVE(hardsigmoid, HARDSIGMOID, .roundings = 4)

/* By Taylor, or an exponential less 1; slopes are exponentials, or results. */
static void make_elu_forward(rng *r, test_call *c)
{
    make_elu(r, c, PTAC_OP_ELU, 1);
}

static void make_elu_backward(rng *r, test_call *c)
{
    make_elu(r, c, PTAC_OP_ELU_BACKWARD, 2);
}

GENERATOR(elu, .op = PTAC_OP_ELU, .make = make_elu_forward, .roundings = 8)
GENERATOR(elu_backward, .op = PTAC_OP_ELU_BACKWARD, .make = make_elu_backward,
          .scale = scale, .roundings = 12)

/* Slopes err by 5 ulp, and by 2 u of an argument of up to 10. */
GRADIENT(gelu_backward, GELU_BACKWARD, .roundings = 60)
GRADIENT(silu_backward, SILU_BACKWARD, .roundings = 30)
GRADIENT(hardswish_backward, HARDSWISH_BACKWARD, .roundings = 6)
GRADIENT(hardsigmoid_backward, HARDSIGMOID_BACKWARD, .roundings = 0)
