/*
 * gen_depthwise.c - random calls of depthwise convolution and of its gradients.
 *
 * Images may have NaN and infinities; in weights, and where weights' gradients are
 * asked for, these spread, which is tested from Python.
 */
#include "gen_images.h"
#include "ops/conv/depthwise/depthwise.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_CHANNELS = 40,
    MOST_WORK = 1 << 20, /* multiply-adds: the row "scalar" takes its time */
};

/* Sizes that leave strips, blocks of rows and groups of lanes ragged. */
static void random_sizes(rng *r, ptac_depthwise *p)
{
    const int kernel = (int)RNG_PICK(r, 1, 2, 3, 3, 3, 4, 5, 5, 7, 7, 9);
    const int stride = (int)RNG_PICK(r, 1, 1, 1, 2, 2, 3);
    const int dilation = (int)RNG_PICK(r, 1, 1, 1, 1, 2, 3);
    const bool is_square = rng_chance(r, 80);

    p->n = rng_between(r, 1, 5);
    p->channels = (int)rng_length(r, MOST_CHANNELS);
    p->h = (int)(rng_chance(r, 5) ? rng_length(r, 200) : rng_length(r, 30));
    p->w = (int)(rng_chance(r, 20) ? rng_length(r, 200) : rng_length(r, 40));
    p->kernel_h = kernel;
    p->kernel_w = is_square ? kernel : (int)rng_between(r, 1, 9);
    p->stride_h = stride;
    p->stride_w = is_square ? stride : (int)rng_between(r, 1, 4);
    p->dilation_h = dilation;
    p->dilation_w = is_square ? dilation : (int)rng_between(r, 1, 3);
    if (rng_chance(r, 10)) { /* a signal */
        p->h = p->kernel_h = p->stride_h = p->dilation_h = 1;
        p->w = (int)rng_length(r, 400);
    }
    p->pad_h = (int)rng_below(r, p->kernel_h == 1 ? 1 : 2 * p->kernel_h);
    p->pad_w = (int)rng_below(r, 2 * p->kernel_w);
    p->channels_last = rng_chance(r, 35);
}

static bool read_outputs(ptac_depthwise *p)
{
    const int h = p->h + 2 * p->pad_h - (p->kernel_h - 1) * p->dilation_h - 1;
    const int w = p->w + 2 * p->pad_w - (p->kernel_w - 1) * p->dilation_w - 1;

    p->out_h = h / p->stride_h + 1;
    p->out_w = w / p->stride_w + 1;
    return h >= 0 && w >= 0 && ptac_depthwise_work(p) <= MOST_WORK;
}

/* The tensors of a convolution, by what is in them. */
typedef struct shapes {
    int64_t x[4], w[4], y[4];
} shapes;

static shapes begin(rng *r, test_call *c, ptac_op op)
{
    ptac_depthwise *p = (ptac_depthwise *)c->params;

    c->call.op = op;
    do
        random_sizes(r, p);
    while (!read_outputs(p));
    return (shapes){
        .x = {p->n, p->channels, p->h, p->w},
        .w = {p->channels, 1, p->kernel_h, p->kernel_w},
        .y = {p->n, p->channels, p->out_h, p->out_w},
    };
}

static void note(test_call *c)
{
    static const char *const results[] = {"forward", "data", "weight"};
    const ptac_depthwise *p = (const ptac_depthwise *)c->params;

    snprintf(c->note, sizeof c->note,
             "%s, %lld images of %d x %d x %d%s, kernel %d x %d, stride %d x %d, "
             "padding %d x %d, dilation %d x %d, %d inputs, %d outputs%s",
             results[p->result], (long long)p->n, p->channels, p->h, p->w,
             p->channels_last ? " NHWC" : "", p->kernel_h, p->kernel_w, p->stride_h,
             p->stride_w, p->pad_h, p->pad_w, p->dilation_h, p->dilation_w,
             c->call.n_inputs, c->call.n_outputs, p->act ? ", ReLU" : "");
}

static float *random_input(rng *r, test_call *c, int n_dims, const int64_t *sizes,
                           bool channels_last)
{
    const double scale = ldexp(1, (int)RNG_PICK(r, 0, 0, 0, -20, 20));
    float *values = test_input(c, PTAC_F32, n_dims, sizes, channels_last);

    fill_smooth(r, PTAC_F32, values, c->call.inputs[c->call.n_inputs - 1].n_elements,
                scale);
    return values;
}

static void make_forward(rng *r, test_call *c)
{
    ptac_depthwise *p = (ptac_depthwise *)c->params;
    const shapes s = begin(r, c, PTAC_OP_DEPTHWISE_CONV2D);

    spoil_images(r, c, random_input(r, c, 4, s.x, p->channels_last));
    random_input(r, c, 4, s.w, false);
    if (rng_chance(r, 50)) {
        random_input(r, c, 1, s.w, false);
        if (rng_chance(r, 50))
            random_input(r, c, 1, s.w, false);
    }
    p->act = (ptac_act)RNG_PICK(r, PTAC_ACT_NONE, PTAC_ACT_NONE, PTAC_ACT_RELU,
                                PTAC_ACT_RELU6);
    test_output(c, PTAC_F32, 4, s.y, p->channels_last);
    note(c);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_depthwise *p = (ptac_depthwise *)c->params;
    const shapes s = begin(r, c, PTAC_OP_DEPTHWISE_CONV2D_BACKWARD);

    if (rng_chance(r, 50)) {
        p->result = PTAC_CONV_DATA;
        spoil_images(r, c, random_input(r, c, 4, s.y, p->channels_last));
        random_input(r, c, 4, s.w, false);
        test_output(c, PTAC_F32, 4, s.x, p->channels_last);
    } else {
        p->result = PTAC_CONV_WEIGHT;
        random_input(r, c, 4, s.x, p->channels_last);
        random_input(r, c, 4, s.y, p->channels_last);
        test_output(c, PTAC_F32, 4, s.w, false);
        if (rng_chance(r, 50))
            test_output(c, PTAC_F32, 1, s.w, false);
    }
    note(c);
}

static void scale(test_call *c)
{
    const ptac_depthwise *p = c->call.params;
    const double n_gradients = (double)p->n * p->out_h * p->out_w;

    scale_sums(c,
               p->result == PTAC_CONV_WEIGHT ? n_gradients : p->kernel_h * p->kernel_w,
               n_gradients);
}

/*
 * Sums of n terms err by sqrt(n) u times a term's size; with sqrt(n) in the scale, 16
 * leaves room for the largest of some thousand elements and stops one wrong tap.
 */
GENERATOR(forward, .op = PTAC_OP_DEPTHWISE_CONV2D, .make = make_forward, .scale = scale,
          .roundings = 16)

GENERATOR(backward, .op = PTAC_OP_DEPTHWISE_CONV2D_BACKWARD, .make = make_backward,
          .scale = scale, .roundings = 16)
