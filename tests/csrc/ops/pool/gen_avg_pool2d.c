/*
 * gen_avg_pool2d.c - random calls of average pooling, plain and adaptive, and of their
 * gradients.
 *
 * A NaN that is rounded to bfloat16 has but one form; sums of several in float or
 * double may have any of them.
 */
#include "gen_avg_pool2d.h"
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
    test_also_16_bits(c);
    fill_reals(r, x.dtype, values, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    test_also_16_bits(c);
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
    test_also_16_bits(c);
    fill_reals(r, x.dtype, grad, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    test_also_16_bits(c);
    note_params(c, &x);
}

/* Plain windows, or adaptive ones: of one size, and overlapping. */
static bool typical_params(int i, random_image *x, ptac_avg_pool2d *p, bool is_adaptive)
{
    static const int64_t sides[] = {7, 6};

    if (!typical_pool(i, x, &p->window, &p->image))
        return false;
    p->is_regular = p->count_include_pad = true;
    if (is_adaptive) {
        p->image.out_h = p->image.out_w = sides[i >> 1 & 1];
        x->out_sizes[2] = x->out_sizes[3] = p->image.out_h;
        ptac_avg_pool2d_adapt(p);
    }
    return true;
}

static bool typical(int i, rng *r, test_call *c, ptac_op op, bool is_adaptive,
                    bool is_backward)
{
    ptac_avg_pool2d *p = (ptac_avg_pool2d *)c->params;
    random_image x;
    float *values;

    if (!typical_params(i, &x, p, is_adaptive))
        return false;
    c->call.op = op;
    values = test_input(c, PTAC_F32, 4, is_backward ? x.out_sizes : x.sizes,
                        x.channels_last);
    test_also_16_bits(c);
    fill_smooth(r, PTAC_F32, values, c->call.inputs[0].n_elements, 1);
    test_output(c, PTAC_F32, 4, is_backward ? x.sizes : x.out_sizes, x.channels_last);
    test_also_16_bits(c);
    note_params(c, &x);
    return true;
}

/* Each tap is read; most of those that windows share come from the nearest cache. */
static int64_t least_bytes(const test_call *c)
{
    const ptac_avg_pool2d *p = (const ptac_avg_pool2d *)c->params;
    const ptac_image *image = &p->image;
    int64_t n_h = 0, n_w = 0;

    for (int64_t i = 0; i < image->out_h; i++)
        n_h += ptac_avg_extent_h(p, i).end - ptac_avg_extent_h(p, i).begin;
    for (int64_t i = 0; i < image->out_w; i++)
        n_w += ptac_avg_extent_w(p, i).end - ptac_avg_extent_w(p, i).begin;
    return (image->n * image->channels * n_h * n_w + c->call.outputs[0].n_elements) *
           (int64_t)c->buffers[0].element_bytes;
}

#define DEFINE_GENERATOR(g, operator, make_call, defined, is_adaptive, is_backward)    \
    static const ptac_kernel g##_on_cuda = {                                           \
        .op = operator,                                                                \
        .name = "scalar",                                                              \
        .accepts = accepts_on_cuda,                                                    \
        .run = defined,                                                                \
    };                                                                                 \
    static void make_##g(rng *r, test_call *c)                                         \
    {                                                                                  \
        make_call(r, c, operator);                                                     \
    }                                                                                  \
    static bool typical_##g(int i, rng *r, test_call *c)                               \
    {                                                                                  \
        return typical(i, r, c, operator, is_adaptive, is_backward);                   \
    }                                                                                  \
    GENERATOR(g, .op = operator, .make = make_##g, .nan_bits = 1u << PTAC_BF16,        \
              .typical = typical_##g, .least_bytes = least_bytes,                      \
              .definition = &g##_on_cuda, .roundings = ROUNDINGS)

/* Of overlapping windows' gradients, though they add up as the definition's do. */
enum {
    ROUNDINGS = 1,
};

DEFINE_GENERATOR(plain, PTAC_OP_AVG_POOL2D, make_forward, average_on_cuda, false, false)
DEFINE_GENERATOR(plain_gradient, PTAC_OP_AVG_POOL2D_BACKWARD, make_backward,
                 spread_on_cuda, false, true)
DEFINE_GENERATOR(adaptive, PTAC_OP_ADAPTIVE_AVG_POOL2D, make_forward, average_on_cuda,
                 true, false)
DEFINE_GENERATOR(adaptive_gradient, PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD, make_backward,
                 spread_on_cuda, true, true)
