/*
 * gen_int8_conv.c - random calls of int8_conv2d.
 *
 * Images have each a manner of their own, as each has its scale; windows of one place,
 * which have a way of their own, come as often as others.
 */
#include "checkrows.h"

#include "ops/int8/conv/int8_conv2d.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_CHANNELS = 140,
    MOST_WORK = 1 << 20, /* multiply-adds: the row "scalar" takes its time */
    MOST_FLOATS = 1 << 19,
};

/* One of the given pointers to numbers. */
#define RNG_OF(r, ...)                                                                 \
    ((int64_t *[]){__VA_ARGS__})[rng_below(                                            \
        r, (int64_t)(sizeof((int64_t *[]){__VA_ARGS__}) / sizeof(int64_t *)))]

static ptac_int8_conv2d *params_of(test_call *c)
{
    return (ptac_int8_conv2d *)c->params;
}

static void random_window(rng *r, ptac_int8_conv2d *p)
{
    const bool is_point = rng_chance(r, 30), is_square = rng_chance(r, 70);

    for (int i = 0; i < 2; i++) {
        p->kernel[i] = is_point ? 1 : RNG_PICK(r, 1, 2, 3, 3, 3, 5, 7);
        p->stride[i] = RNG_PICK(r, 1, 1, 2, 3);
        p->dilation[i] = RNG_PICK(r, 1, 1, 1, 2);
        p->padding[i] = is_point && rng_chance(r, 80) ? 0 : rng_below(r, 4);
    }
    if (is_square) {
        p->kernel[1] = p->kernel[0];
        p->stride[1] = p->stride[0];
        p->padding[1] = p->padding[0];
    }
}

static int64_t places(int64_t size, const ptac_int8_conv2d *p, int i)
{
    const int64_t window = p->dilation[i] * (p->kernel[i] - 1) + 1;
    const int64_t left = size + 2 * p->padding[i] - window;

    return left < 0 ? 0 : left / p->stride[i] + 1;
}

static int64_t work_of(const ptac_int8_conv2d *p)
{
    return p->batch * p->n * p->c * p->kernel[0] * p->kernel[1] * p->out_height *
           p->out_width;
}

/* Of the larger of x and y; a slot of the arena has four times as many bytes. */
static int64_t floats_of(const ptac_int8_conv2d *p)
{
    const int64_t x = p->groups * p->c * p->height * p->width;
    const int64_t y = p->n * p->out_height * p->out_width;

    return p->batch * (x > y ? x : y);
}

/* Images as large as their windows at least, and less of what there is most of. */
static void random_sizes(rng *r, ptac_int8_conv2d *p)
{
    p->groups = rng_chance(r, 25) ? rng_between(r, 2, 4) : 1;
    p->batch = rng_between(r, 1, 5);
    p->c = rng_length(r, MOST_CHANNELS / p->groups);
    p->n = p->groups * rng_length(r, MOST_CHANNELS / p->groups);
    p->height = rng_chance(r, 10) ? rng_length(r, 150) : rng_length(r, 20);
    p->width = rng_chance(r, 10) ? rng_length(r, 150) : rng_length(r, 20);
    for (;;) {
        p->out_height = places(p->height, p, 0);
        p->out_width = places(p->width, p, 1);
        if (p->out_height == 0)
            p->height++;
        else if (p->out_width == 0)
            p->width++;
        else if (work_of(p) <= MOST_WORK && floats_of(p) <= MOST_FLOATS)
            return;
        else if (p->batch > 1)
            p->batch--;
        else if (p->c > 16 && p->c >= p->n)
            p->c -= 7;
        else if (p->n > 16 * p->groups)
            p->n -= 5 * p->groups;
        else if (p->c > 1)
            p->c--;
        else if (p->n > p->groups)
            p->n = p->groups;
        else
            p->height = p->width = 20;
    }
}

static void fill_image(rng *r, float *x, int64_t n)
{
    switch (rng_below(r, 6)) {
    case 0:
        memset(x, 0, (size_t)n * sizeof *x);
        break;
    case 1:
        fill_reals(r, PTAC_F32, x, n);
        break;
    case 2: /* behind a ReLU */
        fill_smooth(r, PTAC_F32, x, n, 3);
        for (int64_t i = 0; i < n; i++)
            x[i] = fmaxf(x[i], 0.0f);
        break;
    default:
        fill_smooth(r, PTAC_F32, x, n, ldexp(1, (int)rng_between(r, -20, 20)));
    }
}

static void add_packed(rng *r, test_call *c)
{
    const ptac_int8_conv2d *p = params_of(c);
    const ptac_packed_shape shape = {
        .n = p->n, .c = p->c, .taps = p->kernel[0] * p->kernel[1], .groups = p->groups};
    const int64_t n_words = ptac_packed_bytes(&shape) / 4;
    const int64_t n_weights = shape.n * shape.c * shape.taps;
    const bool is_extreme = rng_chance(r, 20);
    int8_t *plain = malloc((size_t)n_weights);
    float *packed = test_input(c, PTAC_F32, 1, &n_words, false);

    if (!plain)
        abort();
    for (int64_t i = 0; i < n_weights; i++)
        plain[i] =
            (int8_t)(is_extreme ? RNG_PICK(r, -127, 127) : rng_between(r, -127, 127));
    ptac_pack(&shape, plain, (int8_t *)packed);
    free(plain);
    c->call.inputs[PTAC_INT8_CONV_PACKED].dtype = PTAC_OTHER_DTYPE;
}

static void add_channels(rng *r, test_call *c, bool is_there, bool is_positive)
{
    const int64_t n = params_of(c)->n;
    float *values;

    if (!is_there) {
        test_no_input(c);
        return;
    }
    values = test_input(c, PTAC_F32, 1, &n, false);
    fill_smooth(r, PTAC_F32, values, n, 2);
    for (int64_t i = 0; is_positive && i < n; i++)
        values[i] = fabsf(values[i]) + 0x1p-10f;
}

/* Images without a pixel, of which a margin alone may make some of y's. */
static void empty(rng *r, test_call *c)
{
    ptac_int8_conv2d *p = params_of(c);

    *RNG_OF(r, &p->height, &p->width, &p->batch) = 0;
    p->out_height = places(p->height, p, 0);
    p->out_width = places(p->width, p, 1);
    c->must_be_given_back = true;
}

/* Numbers of an exported program whose products are beyond 64 bits, or small again. */
static void overflow(rng *r, test_call *c)
{
    ptac_int8_conv2d *p = params_of(c);
    const int64_t huge = RNG_PICK(r, INT64_MAX, INT64_C(1) << 62, INT64_C(1) << 40);

    *RNG_OF(r, &p->kernel[0], &p->kernel[1], &p->stride[1], &p->padding[0],
            &p->dilation[1], &p->groups, &p->c, &p->n, &p->out_height) = huge;
    c->must_be_given_back = true;
}

static void make(rng *r, test_call *c)
{
    ptac_int8_conv2d *p = params_of(c);
    const bool has_norm = rng_chance(r, 40);
    int64_t sizes[4];
    float *x;

    c->call.op = PTAC_OP_INT8_CONV2D;
    random_window(r, p);
    random_sizes(r, p);
    if (rng_chance(r, 3))
        empty(r, c);
    p->relu = rng_chance(r, 40);
    p->eps = 1e-5;
    p->channels_last = rng_chance(r, 40);
    sizes[0] = p->batch;
    sizes[1] = p->groups * p->c;
    sizes[2] = p->height;
    sizes[3] = p->width;
    x = test_input(c, PTAC_F32, 4, sizes, p->channels_last);
    for (int64_t i = 0; i < p->batch; i++)
        fill_image(r, x + i * sizes[1] * sizes[2] * sizes[3],
                   sizes[1] * sizes[2] * sizes[3]);
    add_packed(r, c);
    add_channels(r, c, true, true);
    add_channels(r, c, rng_chance(r, 60), false);
    add_channels(r, c, has_norm && rng_chance(r, 80), false);
    add_channels(r, c, has_norm && rng_chance(r, 80), false);
    add_channels(r, c, has_norm, false);
    add_channels(r, c, has_norm, true);
    sizes[1] = p->n;
    sizes[2] = p->out_height;
    sizes[3] = p->out_width;
    test_output(c, PTAC_F32, 4, sizes, p->channels_last);

    const int64_t n_channels = p->groups * p->c;

    if (rng_chance(r, 3))
        overflow(r, c); /* after which the product may not exist */
    snprintf(c->note, sizeof c->note,
             "%lldx%lldx%lldx%lld in %lld groups, to %lld, window %lldx%lld, stride "
             "%lldx%lld, padding %lldx%lld, dilation %lldx%lld%s%s",
             (long long)p->batch, (long long)n_channels, (long long)p->height,
             (long long)p->width, (long long)p->groups, (long long)p->n,
             (long long)p->kernel[0], (long long)p->kernel[1], (long long)p->stride[0],
             (long long)p->stride[1], (long long)p->padding[0],
             (long long)p->padding[1], (long long)p->dilation[0],
             (long long)p->dilation[1], p->relu ? ", relu" : "",
             has_norm ? ", normalized" : "");
}

GENERATOR(conv, .op = PTAC_OP_INT8_CONV2D, .make = make)
