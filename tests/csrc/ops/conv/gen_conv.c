/*
 * gen_conv.c - random calls of convolution and of its gradients.
 *
 * Images may have NaN and infinities; in weights, and where weights' gradients are
 * asked for, these spread, which is tested from Python.
 */
#include "gen_images.h"
#include "ops/conv/conv2d.h"

#include <math.h>
#include <stdio.h>

enum {
    MOST_VOLUME = 1 << 19, /* elements: a slot of the arena holds twice as many */
    MOST_CHANNELS = 70,
    MOST_WORK = 1 << 22, /* multiply-adds: the row "scalar" takes its time */
    MOST_DEEP_WORK = 3 << 22,
    MOST_DEEP_CHANNELS = 340, /* weights that a slot of the arena can hold */
};

/* What some row is made for, and random sizes would hardly ever be. */
typedef enum family {
    ANY,
    ODD,
    FEW_CHANNELS,
    LARGE_IMAGES,
    DEEP,
    ONES,
    VOLUMES,
} family;

/* Elements that a kernel covers along an axis. */
static int reach(int kernel, int dilation)
{
    return (kernel - 1) * dilation + 1;
}

/* What only rows for any geometry take. */
static void random_geometry(rng *r, ptac_conv2d *p)
{
    p->kernel_h = (int)RNG_PICK(r, 1, 1, 2, 3, 4, 7);
    p->kernel_w = rng_chance(r, 70) ? p->kernel_h : (int)rng_between(r, 1, 9);
    p->stride_h = (int)RNG_PICK(r, 1, 1, 2, 3);
    p->stride_w = rng_chance(r, 70) ? p->stride_h : (int)rng_between(r, 1, 4);
    if (rng_chance(r, 20)) {
        p->dilation_h = (int)rng_between(r, 1, 3);
        p->dilation_w = (int)rng_between(r, 1, 3);
    }
    if (rng_chance(r, 40)) {
        p->groups = (int)rng_between(r, 2, 5);
        p->in_channels = p->groups * (int)rng_between(r, 1, 12);
        p->out_channels = p->groups * (int)rng_between(r, 1, 12);
    }
    if (p->d == 1 && rng_chance(r, 15)) { /* a sequence */
        p->h = p->kernel_h = p->stride_h = p->dilation_h = 1;
        p->w = (int)rng_length(r, 1200);
    }
    if (rng_chance(r, 30))
        p->n = rng_between(r, 5, 20);
}

/* The axis that only volumes have, and sizes for strips of rows, planes, volumes. */
static void random_depth(rng *r, ptac_conv2d *p)
{
    p->d = (int)rng_length(r, 12);
    p->h = (int)rng_length(r, rng_chance(r, 20) ? 60 : 14);
    p->w = (int)rng_length(r, rng_chance(r, 20) ? 60 : 14);
    p->kernel_d = (int)RNG_PICK(r, 1, 2, 3, 3, 5);
    p->stride_d = (int)RNG_PICK(r, 1, 1, 2, 3);
    p->dilation_d = (int)RNG_PICK(r, 1, 1, 1, 2);
    p->pad_d = (int)rng_below(r, 4);
    p->in_channels = (int)rng_length(r, 20);
    p->out_channels = (int)rng_length(r, 20);
}

/* Sizes that leave tiles, strips, groups of lanes and panels ragged. */
static void random_sizes(rng *r, family kind, ptac_conv2d *p)
{
    p->n = rng_between(r, 1, 4);
    p->in_channels = (int)rng_length(r, MOST_CHANNELS);
    p->out_channels = (int)rng_length(r, MOST_CHANNELS);
    p->h = (int)rng_length(r, 24);
    p->w = (int)(rng_chance(r, 5) ? rng_length(r, 300) : rng_length(r, 24));
    p->d = p->kernel_d = p->stride_d = p->dilation_d = 1;
    p->pad_d = 0;
    p->kernel_h = p->kernel_w = rng_chance(r, 35) && kind != DEEP ? 5 : 3;
    p->stride_h = p->stride_w = p->dilation_h = p->dilation_w = p->groups = 1;
    switch (kind) {
    case ANY:
        break;
    case VOLUMES:
        random_depth(r, p);
        random_geometry(r, p);
        break;
    case ODD:
        random_geometry(r, p);
        break;
    case ONES: /* kernels of 1x1, of images that share vectors */
        p->kernel_h = p->kernel_w = 1;
        p->n = rng_between(r, 1, 9);
        p->in_channels = (int)rng_length(r, rng_chance(r, 20) ? 600 : MOST_CHANNELS);
        break;
    case FEW_CHANNELS:
        p->in_channels = (int)rng_between(r, 1, 4);
        p->w = (int)rng_between(r, 10, 70);
        break;
    case LARGE_IMAGES: /* sums of weights' gradients that are long enough for tiles */
        p->n = rng_between(r, 1, 2);
        p->in_channels = (int)rng_between(r, 4, 9);
        p->out_channels = (int)rng_between(r, 4, 9);
        p->h = (int)rng_between(r, 33, 70);
        p->w = (int)rng_between(r, 33, 70);
        break;
    case DEEP: /* weights too large to keep: threads share their tiles */
        p->n = 1;
        p->in_channels = (int)rng_between(r, 160, MOST_DEEP_CHANNELS);
        p->out_channels = (int)rng_between(r, 160, MOST_DEEP_CHANNELS);
        p->h = (int)rng_between(r, 2, 4);
        p->w = (int)rng_between(r, 2, 4);
        break;
    }
    p->pad_h = p->h > 1 ? (int)rng_below(r, kind == ODD ? 5 : p->kernel_h) : 0;
    p->pad_w = (int)rng_below(r, kind == ODD ? 9 : p->kernel_w);
    p->out_d = (p->d + 2 * p->pad_d - reach(p->kernel_d, p->dilation_d)) / p->stride_d;
    p->out_h = (p->h + 2 * p->pad_h - reach(p->kernel_h, p->dilation_h)) / p->stride_h;
    p->out_w = (p->w + 2 * p->pad_w - reach(p->kernel_w, p->dilation_w)) / p->stride_w;
    p->out_d++;
    p->out_h++;
    p->out_w++;
}

/* Elements of the larger image, whose slot of the arena has an end. */
static int64_t volume_of(const ptac_conv2d *p)
{
    const int64_t x = p->n * p->in_channels * p->d * p->h * p->w;
    const int64_t y = p->out_channels * ptac_conv2d_pixels(p);

    return x > y ? x : y;
}

static family random_conv(rng *r, ptac_conv2d *p)
{
    const int kind = (int)rng_below(r, 100);
    const family f = kind < 30   ? (kind < 12 ? VOLUMES : ODD)
                     : kind < 42 ? FEW_CHANNELS
                     : kind < 52 ? LARGE_IMAGES
                     : kind < 57 ? DEEP
                     : kind < 69 ? ONES
                                 : ANY;

    do
        random_sizes(r, f, p);
    while (p->d + 2 * p->pad_d < reach(p->kernel_d, p->dilation_d) ||
           p->h + 2 * p->pad_h < reach(p->kernel_h, p->dilation_h) ||
           p->w + 2 * p->pad_w < reach(p->kernel_w, p->dilation_w) ||
           ptac_conv2d_work(p) > (f == DEEP ? MOST_DEEP_WORK : MOST_WORK) ||
           volume_of(p) > MOST_VOLUME);
    return f;
}

static void note(test_call *c, const ptac_conv2d *p)
{
    static const char *const results[] = {"forward", "data", "weight"};

    snprintf(c->note, sizeof c->note,
             "%s%s, %lld of %d x %dx%dx%d, %d channels out, kernel %dx%dx%d, stride "
             "%dx%dx%d, padding %dx%dx%d, dilation %dx%dx%d, %d groups, %d inputs, "
             "%d outputs%s%s",
             p->channels_last ? "NHWC " : "", results[p->result], (long long)p->n,
             p->in_channels, p->d, p->h, p->w, p->out_channels, p->kernel_d,
             p->kernel_h, p->kernel_w, p->stride_d, p->stride_h, p->stride_w, p->pad_d,
             p->pad_h, p->pad_w, p->dilation_d, p->dilation_h, p->dilation_w, p->groups,
             c->call.n_inputs, c->call.n_outputs, p->act ? ", ReLU" : "",
             p->with_pool ? ", pool" : "");
}

/* Of NHWC calls some inputs are NCHW. */
static float *random_input(rng *r, test_call *c, int n_dims, const int64_t *sizes)
{
    const double scale = ldexp(1, (int)RNG_PICK(r, 0, 0, 0, -20, 20));
    const bool is_nhwc =
        n_dims == 4 && ((ptac_conv2d *)c->params)->channels_last && rng_chance(r, 80);
    float *values = test_input(c, PTAC_F32, n_dims, sizes, is_nhwc);

    fill_smooth(r, PTAC_F32, values, c->call.inputs[c->call.n_inputs - 1].n_elements,
                scale);
    return values;
}

static void random_images(rng *r, test_call *c, int n_dims, const int64_t *sizes)
{
    c->may_be_given_back = spoil_images(r, c, random_input(r, c, n_dims, sizes));
}

/* The three tensors of a convolution, by what is in them. */
typedef struct shapes {
    int n_dims;
    int64_t x[5], w[5], y[5];
} shapes;

static shapes begin(rng *r, test_call *c, ptac_op op)
{
    ptac_conv2d *p = (ptac_conv2d *)c->params;

    c->call.op = op;
    if (random_conv(r, p) == VOLUMES)
        return (shapes){
            .n_dims = 5,
            .x = {p->n, p->in_channels, p->d, p->h, p->w},
            .w = {p->out_channels, p->in_channels / p->groups, p->kernel_d, p->kernel_h,
                  p->kernel_w},
            .y = {p->n, p->out_channels, p->out_d, p->out_h, p->out_w},
        };
    p->channels_last = rng_chance(r, 40);
    return (shapes){
        .n_dims = 4,
        .x = {p->n, p->in_channels, p->h, p->w},
        .w = {p->out_channels, p->in_channels / p->groups, p->kernel_h, p->kernel_w},
        .y = {p->n, p->out_channels, p->out_h, p->out_w},
    };
}

static void make_forward(rng *r, test_call *c)
{
    ptac_conv2d *p = (ptac_conv2d *)c->params;
    shapes s = begin(r, c, PTAC_OP_CONV2D);

    random_images(r, c, s.n_dims, s.x);
    random_input(r, c, s.n_dims, s.w);
    if (rng_chance(r, 50)) {
        random_input(r, c, 1, s.w);
        if (rng_chance(r, 50))
            random_input(r, c, 1, s.w);
    }
    p->act = (ptac_act)RNG_PICK(r, PTAC_ACT_NONE, PTAC_ACT_NONE, PTAC_ACT_RELU,
                                PTAC_ACT_RELU6);
    p->with_pool = s.n_dims == 4 && rng_chance(r, 30) && p->out_h > 1 && p->out_w > 1;
    if (p->with_pool)
        for (int i = 2; i < 4; i++)
            s.y[i] /= 2;
    test_output(c, PTAC_F32, s.n_dims, s.y, p->channels_last);
    note(c, p);
}

/* x and y of a convolution change places in its transpose. */
static void make_transposed(rng *r, test_call *c)
{
    ptac_conv2d *p = (ptac_conv2d *)c->params;
    shapes s = begin(r, c, PTAC_OP_CONV2D);

    p->result = PTAC_CONV_DATA;
    random_images(r, c, s.n_dims, s.y);
    random_input(r, c, s.n_dims, s.w);
    if (rng_chance(r, 50))
        random_input(r, c, 1, s.x + 1);
    test_output(c, PTAC_F32, s.n_dims, s.x, p->channels_last);
    note(c, p);
}

static void make_any_forward(rng *r, test_call *c)
{
    if (rng_chance(r, 80))
        make_forward(r, c);
    else
        make_transposed(r, c);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_conv2d *p = (ptac_conv2d *)c->params;
    shapes s = begin(r, c, PTAC_OP_CONV2D_BACKWARD);

    if (rng_chance(r, 50)) {
        p->result = PTAC_CONV_DATA;
        random_images(r, c, s.n_dims, s.y);
        random_input(r, c, s.n_dims, s.w);
        test_output(c, PTAC_F32, s.n_dims, s.x, p->channels_last);
    } else {
        p->result = PTAC_CONV_WEIGHT;
        random_input(r, c, s.n_dims, s.x);
        random_input(r, c, s.n_dims, s.y);
        test_output(c, PTAC_F32, s.n_dims, s.w, p->channels_last);
        if (rng_chance(r, 50))
            test_output(c, PTAC_F32, 1, s.w, false);
    }
    note(c, p);
}

static void scale(test_call *c)
{
    const ptac_conv2d *p = c->call.params;
    const double taps = p->kernel_d * p->kernel_h * p->kernel_w;
    const double n_gradients = (double)ptac_conv2d_pixels(p);

    scale_sums(c,
               p->result == PTAC_CONV_FORWARD ? p->in_channels * taps
               : p->result == PTAC_CONV_DATA  ? p->out_channels * taps
                                              : n_gradients,
               n_gradients);
}

/*
 * Direct sums of n terms err by sqrt(n) u times a term's size, and 4x4 tiles, the
 * widest, by three to six times that; with sqrt(n) in the scale, 48 leaves room for the
 * largest of some thousand elements and stops one wrong tap in any tile.
 */
GENERATOR(forward, .op = PTAC_OP_CONV2D, .make = make_any_forward, .scale = scale,
          .roundings = 48)

GENERATOR(backward, .op = PTAC_OP_CONV2D_BACKWARD, .make = make_backward,
          .scale = scale, .roundings = 48, .threads_change_bits = true,
          /* each has its part of the batch to sum over */)
