/*
 * gen_max_pool2d.c - random calls of max pooling and of its gradient.
 */
#include "gen_pool.h"

#include "ops/pool/max/max_pool2d.h"

#include <string.h>

static void make_forward(rng *r, test_call *c)
{
    ptac_max_pool2d *p = (ptac_max_pool2d *)c->params;
    random_image x;
    void *values;

    random_pool(r, &x, &p->window, &p->image, true);
    if (rng_chance(r, 2)) /* no row takes these, whatever is in them */
        x.dtype = PTAC_I64;
    c->call.op = PTAC_OP_MAX_POOL2D;
    values = test_input(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    test_also_16_bits(c);
    fill_reals(r, x.dtype, values, c->call.inputs[0].n_elements);
    test_output(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    test_also_16_bits(c);
    test_output(c, PTAC_I64, x.n_dims, x.out_sizes, x.channels_last);
    note_pool(c, &x, &p->window, &p->image);
}

static bool typical_forward(int i, rng *r, test_call *c)
{
    ptac_max_pool2d *p = (ptac_max_pool2d *)c->params;
    random_image x;
    float *values;

    if (!typical_pool(i, &x, &p->window, &p->image))
        return false;
    c->call.op = PTAC_OP_MAX_POOL2D;
    values = test_input(c, PTAC_F32, 4, x.sizes, x.channels_last);
    test_also_16_bits(c);
    fill_smooth(r, PTAC_F32, values, c->call.inputs[0].n_elements, 1);
    test_output(c, PTAC_F32, 4, x.out_sizes, x.channels_last);
    test_also_16_bits(c);
    test_output(c, PTAC_I64, 4, x.out_sizes, x.channels_last);
    note_pool(c, &x, &p->window, &p->image);
    return true;
}

/* Each tap is read; most of those that windows share come from the nearest cache. */
static int64_t least_forward(const test_call *c)
{
    const ptac_max_pool2d *p = (const ptac_max_pool2d *)c->params;
    const test_buffer *x = &c->buffers[0];

    return test_bytes(c) + (pool_taps(&p->window, &p->image) - x->n_elements) *
                               (int64_t)x->element_bytes;
}

GENERATOR(forward, .op = PTAC_OP_MAX_POOL2D, .make = make_forward, .nan_bits = ~0u,
          .typical = typical_forward, .least_bytes = least_forward)

/* A tap of one axis that lies in the image, as a position. */
static int64_t random_tap(rng *r, const ptac_window *axis, int64_t output, int64_t size)
{
    const int64_t start = output * axis->stride - axis->padding;
    int64_t first, last;

    ptac_window_clip(axis, start, size, &first, &last);
    return start + rng_between(r, first, last - 1) * axis->dilation;
}

/* What the indices of a gradient call are like. */
typedef enum index_manner {
    FROM_WINDOW, /* as forward gives them, any tap of the window */
    WITH_GAPS,   /* some are -1, which stock leaves out */
    ANYWHERE,    /* of the plane: made up by a user, and still defined */
    WILD,        /* outside the plane: a row must give the call back */
} index_manner;

static int64_t ill_index(rng *r, int64_t n_in)
{
    switch (rng_below(r, 4)) {
    case 0:
        return n_in;
    case 1:
        return -2;
    case 2: /* looks fine when cut to 32 bits */
        return (INT64_C(1) << 32) + rng_below(r, n_in);
    default:
        return rng_chance(r, 50) ? INT64_MIN : INT64_MAX;
    }
}

static int64_t random_index(rng *r, const ptac_max_pool2d *p, index_manner manner,
                            int64_t oh, int64_t ow)
{
    const int64_t n_in = p->image.h * p->image.w;

    if (manner == WITH_GAPS && rng_chance(r, 20))
        return -1;
    if (manner == ANYWHERE && rng_chance(r, 20))
        return rng_below(r, n_in);
    return random_tap(r, &p->window.h, oh, p->image.h) * p->image.w +
           random_tap(r, &p->window.w, ow, p->image.w);
}

static void fill_indices(rng *r, const ptac_max_pool2d *p, index_manner manner,
                         int64_t *indices, int64_t n)
{
    const ptac_image *image = &p->image;
    const int64_t step = image->channels_last ? image->channels : 1;
    const int64_t n_out = image->out_h * image->out_w;

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i / step % n_out;

        indices[i] = random_index(r, p, manner, at / image->out_w, at % image->out_w);
    }
    if (manner == WILD)
        indices[rng_below(r, n)] = ill_index(r, image->h * image->w);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_max_pool2d *p = (ptac_max_pool2d *)c->params;
    random_image x;
    void *grad;
    int64_t *indices;
    const index_manner manner =
        (index_manner)RNG_PICK(r, FROM_WINDOW, FROM_WINDOW, FROM_WINDOW, FROM_WINDOW,
                               WITH_GAPS, ANYWHERE, WILD);

    random_pool(r, &x, &p->window, &p->image, true);
    c->call.op = PTAC_OP_MAX_POOL2D_BACKWARD;
    grad = test_input(c, x.dtype, x.n_dims, x.out_sizes, x.channels_last);
    test_also_16_bits(c);
    fill_reals(r, x.dtype, grad, c->call.inputs[0].n_elements);
    indices = test_input(c, PTAC_I64, x.n_dims, x.out_sizes, x.channels_last);
    fill_indices(r, p, manner, indices, c->call.inputs[1].n_elements);
    test_output(c, x.dtype, x.n_dims, x.sizes, x.channels_last);
    test_also_16_bits(c);
    c->may_be_given_back = manner == ANYWHERE;
    c->must_be_given_back = manner == WILD;
    note_pool(c, &x, &p->window, &p->image);
}

static bool typical_backward(int i, rng *r, test_call *c)
{
    ptac_max_pool2d *p = (ptac_max_pool2d *)c->params;
    random_image x;
    float *grad;
    int64_t *indices;

    if (!typical_pool(i, &x, &p->window, &p->image))
        return false;
    c->call.op = PTAC_OP_MAX_POOL2D_BACKWARD;
    grad = test_input(c, PTAC_F32, 4, x.out_sizes, x.channels_last);
    test_also_16_bits(c);
    fill_smooth(r, PTAC_F32, grad, c->call.inputs[0].n_elements, 1);
    indices = test_input(c, PTAC_I64, 4, x.out_sizes, x.channels_last);
    fill_indices(r, p, FROM_WINDOW, indices, c->call.inputs[1].n_elements);
    test_output(c, PTAC_F32, 4, x.sizes, x.channels_last);
    test_also_16_bits(c);
    note_pool(c, &x, &p->window, &p->image);
    return true;
}

/*
 * A position reads the index of each window over it, and the gradients of those that
 * chose it: in NHWC, where it looks at several channels at once, about half as many as
 * there are indices.
 */
static int64_t least_backward(const test_call *c)
{
    const ptac_max_pool2d *p = (const ptac_max_pool2d *)c->params;
    const int64_t n_out = c->call.inputs[1].n_elements;
    const int64_t taps = pool_taps(&p->window, &p->image);
    const int64_t n_grads = p->image.channels_last ? taps / 2 : n_out;

    return test_bytes(c) + (taps - n_out) * (int64_t)sizeof(int64_t) +
           (n_grads - n_out) * (int64_t)c->buffers[0].element_bytes;
}

GENERATOR(backward, .op = PTAC_OP_MAX_POOL2D_BACKWARD, .make = make_backward,
          .nan_bits = 1u << PTAC_BF16, .typical = typical_backward,
          .least_bytes = least_backward)
