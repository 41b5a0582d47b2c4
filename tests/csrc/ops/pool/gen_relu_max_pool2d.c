/*
 * gen_relu_max_pool2d.c - random calls of max pooling of ReLU(x) and of its gradient.
 */
#include "gen_pool.h"

#include "ops/pool/relu_max/relu_max_pool2d.h"

static void add_real(test_call *c, const random_image *x, bool is_input,
                     const int64_t *sizes)
{
    if (is_input)
        test_input(c, x->dtype, x->n_dims, sizes, x->channels_last);
    else
        test_output(c, x->dtype, x->n_dims, sizes, x->channels_last);
    test_also_16_bits(c);
}

static void build_forward(test_call *c, const random_image *x)
{
    c->call.op = PTAC_OP_RELU_MAX_POOL2D;
    add_real(c, x, true, x->sizes);
    add_real(c, x, false, x->out_sizes);
}

static void *content(test_call *c, int input)
{
    return c->buffers[c->input_buffers[input]].content;
}

static void random_call(rng *r, random_image *x, ptac_relu_max_pool2d *p)
{
    random_pool(r, x, &p->window, &p->image, true);
    if (x->dtype == PTAC_BF16) /* test_also_16_bits() has those */
        x->dtype = PTAC_F32;
}

static void make_forward(rng *r, test_call *c)
{
    ptac_relu_max_pool2d *p = (ptac_relu_max_pool2d *)c->params;
    random_image x;

    random_call(r, &x, p);
    build_forward(c, &x);
    fill_reals(r, x.dtype, content(c, 0), c->call.inputs[0].n_elements);
    if (rng_chance(r, 25))
        test_no_output(c);
    else
        test_output(c, PTAC_OTHER_DTYPE, x.n_dims, x.out_sizes, x.channels_last);
    note_pool(c, &x, &p->window, &p->image);
}

static bool typical_forward(int i, rng *r, test_call *c)
{
    ptac_relu_max_pool2d *p = (ptac_relu_max_pool2d *)c->params;
    random_image x;

    if (!typical_pool(i, &x, &p->window, &p->image))
        return false;
    build_forward(c, &x);
    fill_smooth(r, PTAC_F32, content(c, 0), c->call.inputs[0].n_elements, 1);
    test_output(c, PTAC_OTHER_DTYPE, 4, x.out_sizes, x.channels_last);
    note_pool(c, &x, &p->window, &p->image);
    return true;
}

/* Each tap is read; most of those that windows share come from the nearest cache. */
static int64_t least_forward(const test_call *c)
{
    const ptac_relu_max_pool2d *p = (const ptac_relu_max_pool2d *)c->params;
    const test_buffer *x = &c->buffers[0];

    return test_bytes(c) + (pool_taps(&p->window, &p->image) - x->n_elements) *
                               (int64_t)x->element_bytes;
}

GENERATOR(forward, .op = PTAC_OP_RELU_MAX_POOL2D, .make = make_forward, .nan_bits = ~0u,
          .typical = typical_forward, .least_bytes = least_forward)

/* A tap of one axis that lies in the image. */
static int64_t random_tap(rng *r, const ptac_window *axis, int64_t output, int64_t size)
{
    int64_t first, last;

    ptac_window_clip(axis, output * axis->stride - axis->padding, size, &first, &last);
    return rng_between(r, first, last - 1);
}

static void fill_taps(rng *r, const ptac_relu_max_pool2d *p, uint8_t *taps, int64_t n)
{
    const ptac_image *image = &p->image;
    const ptac_window *h = &p->window.h, *w = &p->window.w;
    const int64_t step = image->channels_last ? image->channels : 1;
    const int64_t n_out = image->out_h * image->out_w;

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i / step % n_out;
        const int64_t tap = random_tap(r, h, at / image->out_w, image->h) * w->kernel +
                            random_tap(r, w, at % image->out_w, image->w);

        taps[i] = (uint8_t)(rng_chance(r, 10) ? PTAC_POOL_NO_TAP : tap);
    }
}

static void build_backward(rng *r, test_call *c, const random_image *x)
{
    const ptac_relu_max_pool2d *p = (const ptac_relu_max_pool2d *)c->params;

    c->call.op = PTAC_OP_RELU_MAX_POOL2D_BACKWARD;
    add_real(c, x, true, x->out_sizes);
    test_input(c, PTAC_OTHER_DTYPE, x->n_dims, x->out_sizes, x->channels_last);
    fill_taps(r, p, content(c, PTAC_RELU_POOL_TAPS), c->call.inputs[0].n_elements);
    add_real(c, x, false, x->sizes);
    note_pool(c, x, &p->window, &p->image);
}

static void make_backward(rng *r, test_call *c)
{
    ptac_relu_max_pool2d *p = (ptac_relu_max_pool2d *)c->params;
    random_image x;

    random_call(r, &x, p);
    build_backward(r, c, &x);
    fill_reals(r, x.dtype, content(c, 0), c->call.inputs[0].n_elements);
}

static bool typical_backward(int i, rng *r, test_call *c)
{
    ptac_relu_max_pool2d *p = (ptac_relu_max_pool2d *)c->params;
    random_image x;

    if (!typical_pool(i, &x, &p->window, &p->image))
        return false;
    build_backward(r, c, &x);
    fill_smooth(r, PTAC_F32, content(c, 0), c->call.inputs[0].n_elements, 1);
    return true;
}

/*
 * A position reads the byte of each window over it, and the gradients of those that
 * chose it: in NHWC, where it looks at up to eight channels at once, of nearly all.
 */
static int64_t least_backward(const test_call *c)
{
    const ptac_relu_max_pool2d *p = (const ptac_relu_max_pool2d *)c->params;
    const int64_t n_out = c->call.inputs[0].n_elements;
    const int64_t taps = pool_taps(&p->window, &p->image);
    const int64_t n_grads = p->image.channels_last ? taps : n_out;

    return test_bytes(c) + taps - n_out +
           (n_grads - n_out) * (int64_t)c->buffers[0].element_bytes;
}

GENERATOR(backward, .op = PTAC_OP_RELU_MAX_POOL2D_BACKWARD, .make = make_backward,
          .typical = typical_backward, .least_bytes = least_backward)
