/*
 * gen_activation.c - random calls of activations' operators and of their gradients.
 */
#include "checkrows.h"
#include "ops/activation/activation.h"

#include <math.h>
#include <stdio.h>

static int64_t random_length(rng *r)
{
    return rng_chance(r, 3) ? rng_length(r, 60000) : rng_length(r, 2000);
}

static void make_prelu(rng *r, test_call *c)
{
    ptac_prelu *p = (ptac_prelu *)c->params;
    const int64_t n_images = rng_between(r, 1, 4);
    int64_t n;

    p->channels = rng_chance(r, 30) ? 1 : rng_length(r, 70);
    p->inner = rng_chance(r, 30) ? 1 : rng_length(r, 200);
    n = n_images * p->channels * p->inner;
    c->call.op = PTAC_OP_PRELU_BACKWARD;
    for (int i = 0; i < 3; i++) {
        const int64_t size = i == PTAC_PRELU_WEIGHT ? p->channels : n;

        fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &size, false), size);
    }
    test_output(c, PTAC_F32, 1, &n, false);
    test_output(c, PTAC_F32, 1, &n, false);
    snprintf(c->note, sizeof c->note, "%lld of %lld channels of %lld",
             (long long)n_images, (long long)p->channels, (long long)p->inner);
}

GENERATOR(prelu, .op = PTAC_OP_PRELU_BACKWARD, .make = make_prelu)

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

static void make_mish_of(rng *r, test_call *c, ptac_op op, int n_inputs)
{
    const int64_t n = random_length(r);

    c->call.op = op;
    for (int i = 0; i < n_inputs; i++)
        fill(r, test_input(c, PTAC_F32, 1, &n, false), n, i + 1 < n_inputs);
    if (n_inputs == 1 && rng_chance(r, 30))
        test_output_in_place(c, 0);
    else
        test_output(c, PTAC_F32, 1, &n, false);
    snprintf(c->note, sizeof c->note, "%lld elements", (long long)n);
}

static void make_mish(rng *r, test_call *c)
{
    make_mish_of(r, c, PTAC_OP_MISH, 1);
}

static void make_mish_backward(rng *r, test_call *c)
{
    make_mish_of(r, c, PTAC_OP_MISH_BACKWARD, 2);
}

/*
 * exp() errs by 1.1 ulp, and what follows rounds five times. The slope has 1 - t * t,
 * in which the error of t doubles, times x, which is up to 10 where that is not 0.
 */
enum {
    ROUNDINGS = 8,
    SLOPE_ROUNDINGS = 40,
};

/*
 * Below -87 exp() is a multiple of the smallest float, and errs by one or two of those;
 * they are multiplied by x, which is up to -104 before exp() is 0.
 */
static void scale_mish(test_call *c)
{
    c->buffers[c->output_buffers[0]].least_scale = 1e-36;
}

static void scale_mish_backward(test_call *c)
{
    const float *grad = c->call.inputs[PTAC_MISH_GRAD].data;
    double most = 0;

    for (int64_t i = 0; i < c->call.inputs[0].n_elements; i++)
        if (isfinite(grad[i]))
            most = fmax(most, fabs((double)grad[i]));
    c->buffers[c->output_buffers[0]].least_scale = most;
}

GENERATOR(mish, .op = PTAC_OP_MISH, .make = make_mish, .scale = scale_mish,
          .roundings = ROUNDINGS)
GENERATOR(mish_backward, .op = PTAC_OP_MISH_BACKWARD, .make = make_mish_backward,
          .scale = scale_mish_backward, .roundings = SLOPE_ROUNDINGS)
