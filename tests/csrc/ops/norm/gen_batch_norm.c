/*
 * gen_batch_norm.c - random calls of batch normalization and its gradient.
 */
#include "gen_batch_norm.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_ELEMENTS = 6000,
    MANY_ELEMENTS = 80000,
};

void random_channel_norm(rng *r, ptac_channel_norm *p)
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

float *channel_images(test_call *c)
{
    const ptac_channel_norm *p = channel_norm_of(c);
    const int64_t sizes[] = {p->n_images, p->n_channels, p->n_pixels};

    return test_input(c, PTAC_F32, 3, sizes, false);
}

void fill_channel_images(rng *r, const ptac_channel_norm *p, float *x)
{
    const double away = (double)RNG_PICK(r, 0, 0, 1, 10, -100);
    const bool is_special = rng_chance(r, 10), is_constant = rng_chance(r, 5);

    fill_smooth(r, PTAC_F32, x, channel_norm_elements(p), 1);
    for (int64_t i = 0; i < channel_norm_elements(p); i++) {
        const int64_t channel = i / p->n_pixels % p->n_channels;
        const double spread = ldexp(1, (int)(channel % 5) - 2);

        x[i] = is_constant ? (float)away : (float)((x[i] + away) * spread);
    }
    if (is_special)
        x[rng_below(r, channel_norm_elements(p))] = rng_chance(r, 50) ? NAN : INFINITY;
}

float *channel_numbers(rng *r, test_call *c, bool is_there)
{
    float *numbers;

    if (!is_there) {
        test_no_input(c);
        return NULL;
    }
    numbers = test_input(c, PTAC_F32, 1, &channel_norm_of(c)->n_channels, false);
    fill_smooth(r, PTAC_F32, numbers, channel_norm_of(c)->n_channels, 2);
    return numbers;
}

void channel_variances(rng *r, test_call *c, bool is_there)
{
    float *numbers = channel_numbers(r, c, is_there);

    for (int64_t i = 0; numbers && i < channel_norm_of(c)->n_channels; i++)
        numbers[i] = fabsf(numbers[i]) + 0.1f;
}

void channel_output(test_call *c, bool is_there)
{
    if (is_there)
        test_output(c, PTAC_F32, 1, &channel_norm_of(c)->n_channels, false);
    else
        test_no_output(c);
}

void note_channel_norm(test_call *c)
{
    const ptac_channel_norm *p = channel_norm_of(c);

    snprintf(c->note, sizeof c->note, "%lld images of %lld channels of %lld, eps %g%s",
             (long long)p->n_images, (long long)p->n_channels, (long long)p->n_pixels,
             p->eps, p->by_batch ? "" : ", running");
}

void channel_images_output(test_call *c)
{
    const ptac_channel_norm *p = channel_norm_of(c);
    const int64_t sizes[] = {p->n_images, p->n_channels, p->n_pixels};

    test_output(c, PTAC_F32, 3, sizes, false);
}

static void make_forward(rng *r, test_call *c)
{
    ptac_channel_norm *p = channel_norm_of(c);
    bool has_running, in_place = rng_chance(r, 50);
    float *mean;

    c->call.op = PTAC_OP_BATCH_NORM;
    random_channel_norm(r, p);
    has_running = !p->by_batch || rng_chance(r, 70);
    fill_channel_images(r, p, channel_images(c));
    channel_numbers(r, c, rng_chance(r, 70));
    channel_numbers(r, c, rng_chance(r, 70));
    mean = channel_numbers(r, c, has_running);
    channel_variances(r, c, has_running);
    if (!p->by_batch && rng_chance(r, 10))
        mean[rng_below(r, p->n_channels)] = rng_chance(r, 50) ? -INFINITY : NAN;
    channel_images_output(c);
    channel_output(c, p->by_batch);
    channel_output(c, p->by_batch);
    for (int i = 0; i < 2; i++) {
        const bool is_there = p->by_batch && has_running;

        if (is_there && in_place)
            test_output_in_place(c, PTAC_BATCH_NORM_RUNNING_MEAN + i);
        else
            channel_output(c, is_there);
    }
    note_channel_norm(c);
}

void batch_norm_gradient(rng *r, test_call *c)
{
    ptac_channel_norm *p = channel_norm_of(c);
    float *grad, *x, *mean;

    grad = channel_images(c);
    fill_smooth(r, PTAC_F32, grad, channel_norm_elements(p), 1);
    x = channel_images(c);
    fill_channel_images(r, p, x);
    channel_numbers(r, c, rng_chance(r, 70));
    mean = channel_numbers(r, c, true);
    for (int64_t i = 0; i < p->n_channels; i++)
        mean[i] += x[i * p->n_pixels];
    channel_variances(r, c, true);
}

void batch_norm_gradient_outputs(rng *r, test_call *c)
{
    const int wanted = (int)rng_between(r, 1, 7);

    if (wanted & 1)
        channel_images_output(c);
    else
        test_no_output(c);
    channel_output(c, wanted & 2);
    channel_output(c, wanted & 4);
    note_channel_norm(c);
}

static void make_backward(rng *r, test_call *c)
{
    c->call.op = PTAC_OP_BATCH_NORM_BACKWARD;
    random_channel_norm(r, channel_norm_of(c));
    batch_norm_gradient(r, c);
    batch_norm_gradient_outputs(r, c);
}

static double largest_finite(const float *x, int64_t n, double otherwise)
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

void scale_batch_norm(test_call *c)
{
    const ptac_view *in = c->call.inputs;
    const ptac_channel_norm *p = channel_norm_of(c);
    const double x =
        largest_finite(in[PTAC_BATCH_NORM_X].data, channel_norm_elements(p), 0) +
        largest_finite(in[PTAC_BATCH_NORM_RUNNING_MEAN].data, p->n_channels, 0);
    const double weight =
        largest_finite(in[PTAC_BATCH_NORM_WEIGHT].data, p->n_channels, 1);
    const double bias = largest_finite(in[PTAC_BATCH_NORM_BIAS].data, p->n_channels, 0);
    const double rstd = 1 / sqrt(p->eps);

    set_scale(c, PTAC_BATCH_NORM_Y, x * weight * rstd + bias);
    if (c->call.n_outputs == 1)
        return;
    set_scale(c, PTAC_BATCH_NORM_MEAN, x);
    set_scale(c, PTAC_BATCH_NORM_RSTD, rstd);
    set_scale(c, PTAC_BATCH_NORM_NEW_MEAN, x);
    set_scale(c, PTAC_BATCH_NORM_NEW_VAR, 4 * x * x);
    if (c->call.op != PTAC_OP_BATCH_NORM_ACT)
        return;
    set_scale(c, PTAC_BATCH_NORM_SCALE, weight * rstd);
    set_scale(c, PTAC_BATCH_NORM_SHIFT, x * weight * rstd + bias);
}

void scale_batch_norm_backward(test_call *c)
{
    const ptac_view *in = c->call.inputs;
    const ptac_channel_norm *p = channel_norm_of(c);
    const double n = (double)(p->n_images * p->n_pixels);
    const double grad =
        largest_finite(in[PTAC_BATCH_NORM_GRAD_Y].data, channel_norm_elements(p), 0);
    const double away =
        largest_finite(in[PTAC_BATCH_NORM_GRAD_X_OF].data, channel_norm_elements(p),
                       0) +
        largest_finite(in[PTAC_BATCH_NORM_GRAD_MEAN].data, p->n_channels, 0);
    const double weight =
        largest_finite(in[PTAC_BATCH_NORM_GRAD_WEIGHT_OF].data, p->n_channels, 1);
    const double rstd = p->by_batch ? largest_finite(in[PTAC_BATCH_NORM_GRAD_RSTD].data,
                                                     p->n_channels, 1)
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
          .scale = scale_batch_norm, .roundings = 16)
GENERATOR(batch_norm_backward, .op = PTAC_OP_BATCH_NORM_BACKWARD, .make = make_backward,
          .scale = scale_batch_norm_backward, .roundings = 48)
