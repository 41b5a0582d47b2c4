/*
 * gen_avg_pool2d.c - random calls of average pooling, plain and adaptive, and of their
 * gradients.
 *
 * A NaN that is rounded to bfloat16 has but one form; sums of several in float or
 * double may have any of them.
 */
#include "gen_pool.h"

#include "ops/pool/avg/avg_pool2d.h"

#include <stdio.h>
#include <string.h>

static void random_divisor(rng *r, ptac_avg_pool2d *p)
{
    p->count_include_pad = rng_chance(r, 50);
    p->is_regular = true;
    if (rng_chance(r, 20)) /* torch takes any but 0; not all have a bfloat16 */
        p->divisor = RNG_PICK(r, 1, 3, 7, -2, 255, 257, 65537, INT64_C(1) << 40);
}

static void random_params(rng *r, random_image *x, ptac_avg_pool2d *p, bool is_adaptive)
{
    if (is_adaptive) {
        random_adaptive_pool(r, x, &p->image);
        ptac_avg_pool2d_adapt(p);
    } else {
        random_pool(r, x, &p->window, &p->image, false);
        random_divisor(r, p);
    }
}

static void note_params(test_call *c, const random_image *x)
{
    const ptac_avg_pool2d *p = (const ptac_avg_pool2d *)c->params;
    size_t n;

    note_pool(c, x, &p->window, &p->image);
    n = strlen(c->note);
    snprintf(c->note + n, sizeof c->note - n, "%s%s, divisor %lld",
             p->is_regular ? "" : ", irregular",
             p->count_include_pad ? ", padding counts" : "", (long long)p->divisor);
}

static void make_forward(rng *r, test_call *c, ptac_op op)
{
    ptac_avg_pool2d *p = (ptac_avg_pool2d *)c->params;
    random_image x;
    void *values;

    random_params(r, &x, p, op == PTAC_OP_ADAPTIVE_AVG_POOL2D);
    if (rng_chance(r, 2)) /* no row takes these */
        x.dtype = PTAC_I64;
    c->call.op = op;
    values = test_input(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    fill_reals(r, x.dtype, values, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    note_params(c, &x);
}

static void make_backward(rng *r, test_call *c, ptac_op op)
{
    ptac_avg_pool2d *p = (ptac_avg_pool2d *)c->params;
    random_image x;
    void *grad;

    random_params(r, &x, p, op == PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD);
    c->call.op = op;
    grad = test_input(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    fill_reals(r, x.dtype, grad, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    note_params(c, &x);
}

#define DEFINE_GENERATOR(name, operator, make_call)                                    \
    static void make_##name(rng *r, test_call *c)                                      \
    {                                                                                  \
        make_call(r, c, operator);                                                     \
    }                                                                                  \
    GENERATOR(name, .op = operator, .make = make_##name, .nan_bits = 1u << PTAC_BF16)

DEFINE_GENERATOR(plain, PTAC_OP_AVG_POOL2D, make_forward)
DEFINE_GENERATOR(plain_gradient, PTAC_OP_AVG_POOL2D_BACKWARD, make_backward)
DEFINE_GENERATOR(adaptive, PTAC_OP_ADAPTIVE_AVG_POOL2D, make_forward)
DEFINE_GENERATOR(adaptive_gradient, PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD, make_backward)
