/*
 * gen_upsample.c - random calls of upsampling, to the nearest and bilinear, and of the
 * gradients.
 */
#include "checkrows.h"
#include "ops/upsample/upsample.h"

#include <stdio.h>

/* Sizes and factors, whole ones and others; a scale may be given beside them. */
static ptac_upsample_axis random_axis(rng *r, const ptac_upsample *p, bool is_linear)
{
    const int64_t size = rng_length(r, 40);
    const int64_t outputs =
        rng_chance(r, 50) ? size * RNG_PICK(r, 1, 2, 2, 2, 3, 4)
                          : rng_between(r, size, rng_chance(r, 80) ? 2 * size + 1 : 90);
    const double scale = rng_chance(r, 30) ? 1 + (double)rng_below(r, 40) / 10 : 0;

    return is_linear ? ptac_linear_axis(size, outputs, scale, p)
                     : ptac_nearest_axis(size, outputs, scale, p->by_pixel);
}

static void make(rng *r, test_call *c, ptac_op op, bool is_linear, bool is_backward)
{
    ptac_upsample *p = (ptac_upsample *)c->params;
    int64_t sizes[2][4];
    void *x;

    p->n = rng_between(r, 1, 3);
    p->channels_last = rng_chance(r, 40);
    p->by_pixel = rng_chance(r, 50);
    p->align_corners = rng_chance(r, 50);
    p->is_fused = rng_chance(r, 50);
    p->h = random_axis(r, p, is_linear);
    p->w = random_axis(r, p, is_linear);
    p->channels = rng_length(
        r, ptac_least(40, 100000 / (p->n * p->h.outputs * p->w.outputs) + 1));
    for (int i = 0; i < 2; i++) {
        sizes[i][0] = p->n;
        sizes[i][1] = p->channels;
        sizes[i][2] = i == is_backward ? p->h.size : p->h.outputs;
        sizes[i][3] = i == is_backward ? p->w.size : p->w.outputs;
    }
    c->call.op = op;
    x = test_input(c, PTAC_F32, 4, sizes[0], p->channels_last);
    /* Near the largest float, sums in float overflow where those in double do not. */
    if (is_linear && !is_backward && rng_chance(r, 80))
        fill_smooth(r, PTAC_F32, x, c->call.inputs[0].n_elements, 10);
    else
        fill_reals(r, PTAC_F32, x, c->call.inputs[0].n_elements);
    test_output(c, PTAC_F32, 4, sizes[1], p->channels_last);
    snprintf(c->note, sizeof c->note,
             "%s %lldx%lld, %lldx%lld to %lldx%lld, ratios %.9g and %.9g%s%s",
             p->channels_last ? "nhwc" : "nchw", (long long)p->n,
             (long long)p->channels, (long long)p->h.size, (long long)p->w.size,
             (long long)p->h.outputs, (long long)p->w.outputs, (double)p->h.ratio,
             (double)p->w.ratio, p->by_pixel ? ", by pixel" : "",
             p->align_corners ? ", corners aligned" : "");
}

/* Each output is rounded in two steps a row, and in two that join the rows. */
enum {
    ROUNDINGS = 6,
};

#define DEFINE_GENERATOR(g, operator, is_linear, is_backward, ...)                     \
    static void make_##g(rng *r, test_call *c)                                         \
    {                                                                                  \
        make(r, c, operator, is_linear, is_backward);                                  \
    }                                                                                  \
    GENERATOR(g, .op = operator, .make = make_##g, ##__VA_ARGS__)

DEFINE_GENERATOR(nearest, PTAC_OP_UPSAMPLE_NEAREST2D, false, false,
                 .nan_bits = 1u << PTAC_F32)
DEFINE_GENERATOR(nearest_gradient, PTAC_OP_UPSAMPLE_NEAREST2D_BACKWARD, false, true)
DEFINE_GENERATOR(bilinear, PTAC_OP_UPSAMPLE_BILINEAR2D, true, false,
                 .roundings = ROUNDINGS)
DEFINE_GENERATOR(bilinear_gradient, PTAC_OP_UPSAMPLE_BILINEAR2D_BACKWARD, true, true)
