/*
 * gen_batch_norm.c - random calls of batch normalization, its gradient, and an
 * activation behind it.
 *
 * u is the unit roundoff of float32.
 */
#include "checkrows.h"
#include "ops/norm/batch_norm.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_ELEMENTS = 6000,
    MANY_ELEMENTS = 80000,
};

static ptac_channel_norm *norm_of(test_call *c)
{
    return (ptac_channel_norm *)c->params;
}

/* NCHW and NHWC, small images and large ones, of one part or several. */
static void random_sizes(rng *r, ptac_channel_norm *p)
{
    const int64_t most = rng_chance(r, 25) ? MANY_ELEMENTS : MOST_ELEMENTS;

    p->n_pixels = p->n_channels = 1;
    switch (rng_below(r, 4)) {
    case 0:
        p->n_channels = rng_length(r, most == MANY_ELEMENTS ? 2100 : 300);
        break;
    case 1: /* few channels of many pixels */
        p->n_pixels = most / 3 - rng_below(r, 40);
        p->n_channels = rng_between(r, 1, 3);
        break;
    case 2: /* channels that are columns */
        p->n_pixels = rng_between(r, 2, 9);
        p->n_channels = rng_length(r, 40);
        break;
    default:
        p->n_pixels = rng_length(r, 150);
        p->n_channels = rng_length(r, 20);
    }
    p->n_images = rng_length(r, most / (p->n_pixels * p->n_channels) + 1);
    if (p->n_images * p->n_pixels == 1)
        p->n_images = 2;
    p->eps = rng_chance(r, 50) ? 1e-5 : 1e-3;
    p->momentum = (double)RNG_PICK(r, 1, 3, 10) / 10;
    p->by_batch = rng_chance(r, 70);
}

static int64_t elements_of(const ptac_channel_norm *p)
{
    return p->n_images * p->n_channels * p->n_pixels;
}

static float *add_images(test_call *c)
{
    const ptac_channel_norm *p = norm_of(c);
    const int64_t sizes[] = {p->n_images, p->n_channels, p->n_pixels};

    return test_input(c, PTAC_F32, 3, sizes, false);
}

/* Channels apart from zero by up to a hundred times what they spread; some special. */
static void fill_images(rng *r, const ptac_channel_norm *p, float *x)
{
    const double away = (double)RNG_PICK(r, 0, 0, 1, 10, -100);
    const bool is_special = rng_chance(r, 10), is_constant = rng_chance(r, 5);

    fill_smooth(r, PTAC_F32, x, elements_of(p), 1);
    for (int64_t i = 0; i < elements_of(p); i++) {
        const int64_t channel = i / p->n_pixels % p->n_channels;
        const double spread = ldexp(1, (int)(channel % 5) - 2);

        x[i] = is_constant ? (float)away : (float)((x[i] + away) * spread);
    }
    if (is_special)
        x[rng_below(r, elements_of(p))] = rng_chance(r, 50) ? NAN : INFINITY;
}

/* One number a channel, or none. */
static float *add_channels(rng *r, test_call *c, bool is_there)
{
    float *numbers;

    if (!is_there) {
        test_no_input(c);
        return NULL;
    }
    numbers = test_input(c, PTAC_F32, 1, &norm_of(c)->n_channels, false);
    fill_smooth(r, PTAC_F32, numbers, norm_of(c)->n_channels, 2);
    return numbers;
}

static void add_variances(rng *r, test_call *c, bool is_there)
{
    float *numbers = add_channels(r, c, is_there);

    for (int64_t i = 0; numbers && i < norm_of(c)->n_channels; i++)
        numbers[i] = fabsf(numbers[i]) + 0.1f;
}

static void add_output(test_call *c, bool is_there)
{
    if (is_there)
        test_output(c, PTAC_F32, 1, &norm_of(c)->n_channels, false);
    else
        test_no_output(c);
}

static void note(test_call *c)
{
    const ptac_channel_norm *p = norm_of(c);

    snprintf(c->note, sizeof c->note, "%lld images of %lld channels of %lld, eps %g%s",
             (long long)p->n_images, (long long)p->n_channels, (long long)p->n_pixels,
             p->eps, p->by_batch ? "" : ", running");
}

static void add_images_output(test_call *c)
{
    const ptac_channel_norm *p = norm_of(c);
    const int64_t sizes[] = {p->n_images, p->n_channels, p->n_pixels};

    test_output(c, PTAC_F32, 3, sizes, false);
}

static void make_forward(rng *r, test_call *c)
{
    ptac_channel_norm *p = norm_of(c);
    bool has_running, in_place = rng_chance(r, 50);
    float *mean;

    c->call.op = PTAC_OP_BATCH_NORM;
    random_sizes(r, p);
    has_running = !p->by_batch || rng_chance(r, 70);
    fill_images(r, p, add_images(c));
    add_channels(r, c, rng_chance(r, 70));
    add_channels(r, c, rng_chance(r, 70));
    mean = add_channels(r, c, has_running);
    add_variances(r, c, has_running);
    if (!p->by_batch && rng_chance(r, 10))
        mean[rng_below(r, p->n_channels)] = rng_chance(r, 50) ? -INFINITY : NAN;
    add_images_output(c);
    add_output(c, p->by_batch);
    add_output(c, p->by_batch);
    for (int i = 0; i < 2; i++) {
        const bool is_there = p->by_batch && has_running;

        if (is_there && in_place)
            test_output_in_place(c, PTAC_BATCH_NORM_RUNNING_MEAN + i);
        else
            add_output(c, is_there);
    }
    note(c);
}

static void make_act(rng *r, test_call *c)
{
    ptac_channel_norm *p = norm_of(c);

    c->call.op = PTAC_OP_BATCH_NORM_ACT;
    random_sizes(r, p);
    p->by_batch = false;
    p->act = (ptac_act)RNG_PICK(r, PTAC_ACT_NONE, PTAC_ACT_RELU, PTAC_ACT_RELU6,
                                PTAC_ACT_SILU, PTAC_ACT_HARDSWISH);
    fill_images(r, p, add_images(c));
    add_channels(r, c, rng_chance(r, 70));
    add_channels(r, c, rng_chance(r, 70));
    add_channels(r, c, true);
    add_variances(r, c, true);
    if (rng_chance(r, 50))
        test_output_in_place(c, PTAC_BATCH_NORM_X);
    else
        add_images_output(c);
    note(c);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_channel_norm *p = norm_of(c);
    const int wanted = (int)rng_between(r, 1, 7);
    float *grad, *x, *mean;

    c->call.op = PTAC_OP_BATCH_NORM_BACKWARD;
    random_sizes(r, p);
    grad = add_images(c);
    fill_smooth(r, PTAC_F32, grad, elements_of(p), 1);
    x = add_images(c);
    fill_images(r, p, x);
    add_channels(r, c, rng_chance(r, 70));
    mean = add_channels(r, c, true);
    for (int64_t i = 0; i < p->n_channels; i++) /* near to what x is */
        mean[i] += x[i * p->n_pixels];
    add_variances(r, c, true);
    if (wanted & 1)
        add_images_output(c);
    else
        test_no_output(c);
    add_output(c, wanted & 2);
    add_output(c, wanted & 4);
    note(c);
}

static double largest_of(const float *x, int64_t n, double otherwise)
{
    double largest = x ? 0 : otherwise;

    for (int64_t i = 0; x && i < n; i++)
        if (isfinite(x[i]))
            largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

static void set_scale(test_call *c, int output, double scale)
{
    if (c->call.outputs[output].n_elements)
        c->buffers[c->output_buffers[output]].least_scale = scale;
}

/* Results are made of x and its mean, times 1 / sqrt(variance + eps) at most. */
static void scale_forward(test_call *c)
{
    const ptac_view *in = c->call.inputs;
    const ptac_channel_norm *p = norm_of(c);
    const double x =
        largest_of(in[PTAC_BATCH_NORM_X].data, elements_of(p), 0) +
        largest_of(in[PTAC_BATCH_NORM_RUNNING_MEAN].data, p->n_channels, 0);
    const double weight = largest_of(in[PTAC_BATCH_NORM_WEIGHT].data, p->n_channels, 1);
    const double bias = largest_of(in[PTAC_BATCH_NORM_BIAS].data, p->n_channels, 0);
    const double rstd = 1 / sqrt(p->eps);

    set_scale(c, PTAC_BATCH_NORM_Y, x * weight * rstd + bias);
    if (c->call.n_outputs == 1)
        return;
    set_scale(c, PTAC_BATCH_NORM_MEAN, x);
    set_scale(c, PTAC_BATCH_NORM_RSTD, rstd);
    set_scale(c, PTAC_BATCH_NORM_NEW_MEAN, x);
    set_scale(c, PTAC_BATCH_NORM_NEW_VAR, 4 * x * x);
}

static void scale_backward(test_call *c)
{
    const ptac_view *in = c->call.inputs;
    const ptac_channel_norm *p = norm_of(c);
    const double n = (double)(p->n_images * p->n_pixels);
    const double grad = largest_of(in[PTAC_BATCH_NORM_GRAD_Y].data, elements_of(p), 0);
    const double away =
        largest_of(in[PTAC_BATCH_NORM_GRAD_X_OF].data, elements_of(p), 0) +
        largest_of(in[PTAC_BATCH_NORM_GRAD_MEAN].data, p->n_channels, 0);
    const double weight =
        largest_of(in[PTAC_BATCH_NORM_GRAD_WEIGHT_OF].data, p->n_channels, 1);
    const double rstd =
        p->by_batch ? largest_of(in[PTAC_BATCH_NORM_GRAD_RSTD].data, p->n_channels, 1)
                    : 1 / sqrt(0.1);

    set_scale(c, PTAC_BATCH_NORM_GRAD_X,
              weight * rstd * grad * (1 + away * away * rstd * rstd));
    set_scale(c, PTAC_BATCH_NORM_GRAD_WEIGHT, n * grad * away * rstd);
    set_scale(c, PTAC_BATCH_NORM_GRAD_BIAS, n * grad);
}

/*
 * Sums are exact beside u, or of at most 32 + 3 additions in float of terms that are
 * smaller than the scales by the number of lines. The mean, scale and shift are rounded
 * once each, as the distance from the mean, and two operations follow: 16.
 */
GENERATOR(batch_norm, .op = PTAC_OP_BATCH_NORM, .make = make_forward,
          .scale = scale_forward, .roundings = 16)
GENERATOR(batch_norm_backward, .op = PTAC_OP_BATCH_NORM_BACKWARD, .make = make_backward,
          .scale = scale_backward, .roundings = 48)

/* Likewise, and the slope of an activation is 1.1 at most. */
GENERATOR(batch_norm_act, .op = PTAC_OP_BATCH_NORM_ACT, .make = make_act,
          .scale = scale_forward, .roundings = 24)
