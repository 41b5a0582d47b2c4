/*
 * gen_pool.c - the geometry of random pooling calls.
 */
#include "gen_pool.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST_ELEMENTS = 3000,   /* of a usual input: many calls a second */
    MANY_ELEMENTS = 100000, /* now and then: enough to be shared out to threads */
    MOST_TAPS = 2000000,    /* of all windows together: milliseconds */
};

static ptac_window random_axis(rng *r, bool may_dilate)
{
    ptac_window axis = {.dilation = 1};

    axis.kernel = rng_chance(r, 3) ? rng_between(r, 60, 70) : rng_between(r, 1, 5);
    axis.stride = rng_chance(r, 10) ? rng_between(r, 4, 70) : rng_between(r, 1, 3);
    axis.padding = rng_between(r, 0, axis.kernel / 2);
    if (may_dilate && rng_chance(r, 25))
        axis.dilation = rng_between(r, 2, 4);
    return axis;
}

static void random_window(rng *r, ptac_window2d *window, bool may_dilate)
{
    window->ceil_mode = rng_chance(r, 40);
    if (rng_chance(r, 25)) { /* the common one, which rows treat by itself */
        window->h = window->w = (ptac_window){2, 2, 0, 1};
        return;
    }
    window->h = random_axis(r, may_dilate);
    window->w = rng_chance(r, 50) ? window->h : random_axis(r, may_dilate);
}

static int64_t product(const int64_t *sizes, int n)
{
    int64_t all = 1;

    for (int i = 0; i < n; i++)
        all *= sizes[i];
    return all;
}

/* Sizes of an input for this window; small enough, and not always large enough. */
static void random_sizes(rng *r, const ptac_window2d *window, random_image *x)
{
    const int64_t most = rng_chance(r, 8) ? MANY_ELEMENTS : MOST_ELEMENTS;
    const int64_t reach_h = window->h.dilation * (window->h.kernel - 1) + 1;
    int64_t *hw = &x->sizes[x->n_dims - 2];

    do {
        if (x->n_dims == 4)
            x->sizes[0] = rng_between(r, 1, 3);
        x->sizes[x->n_dims - 3] = rng_length(r, 70);
        hw[0] = rng_chance(r, 50) ? rng_between(r, 1, reach_h + 6) : rng_length(r, 80);
        hw[1] = rng_length(r, 150);
        /* Output widths around a vector's, not only input widths. */
        if (rng_chance(r, 50))
            hw[1] = hw[1] * window->w.stride + rng_between(r, 0, window->w.stride);
        if (most == MANY_ELEMENTS)
            hw[0] += 40;
    } while (product(x->sizes, x->n_dims) > most);
}

static bool fits(const ptac_window2d *window, ptac_image *image)
{
    const ptac_window *h = &window->h, *w = &window->w;

    image->out_h = ptac_window_outputs(h, image->h, window->ceil_mode);
    image->out_w = ptac_window_outputs(w, image->w, window->ceil_mode);

    const int64_t n_windows = image->n * image->channels * image->out_h * image->out_w;

    return image->out_h > 0 && image->out_w > 0 &&
           n_windows <= MOST_TAPS / (h->kernel * w->kernel) &&
           ptac_window_always_hits(h, image->h, image->out_h) &&
           ptac_window_always_hits(w, image->w, image->out_w);
}

/* The image as bind reads it off the tensor; false where it is none for us. */
static bool read_image(random_image *x, ptac_image *image)
{
    test_call scratch;

    memset(&scratch, 0, sizeof scratch);
    test_input(&scratch, x->dtype, x->n_dims, x->sizes, x->channels_last);

    const bool fine = !ptac_image_of(&scratch.call.inputs[0], image);

    test_call_clear(&scratch);
    return fine;
}

static void random_layout(rng *r, random_image *x)
{
    x->n_dims = rng_chance(r, 15) ? 3 : 4;
    x->channels_last = x->n_dims == 4 && rng_chance(r, 45);
    x->dtype = (ptac_dtype)rng_between(r, PTAC_F32, PTAC_F64);
}

static void set_outputs(random_image *x, const ptac_image *image)
{
    memcpy(x->out_sizes, x->sizes, sizeof x->sizes);
    x->out_sizes[x->n_dims - 2] = image->out_h;
    x->out_sizes[x->n_dims - 1] = image->out_w;
    /* As bind does: outputs and dense copies take the layout that torch would give. */
    x->channels_last = image->channels_last;
}

static bool try_pool(rng *r, random_image *x, ptac_window2d *window, ptac_image *image,
                     bool may_dilate)
{
    random_layout(r, x);
    random_window(r, window, may_dilate);
    random_sizes(r, window, x);

    const bool fine = ptac_window_is_valid(&window->h) &&
                      ptac_window_is_valid(&window->w) && read_image(x, image) &&
                      fits(window, image);

    set_outputs(x, image);
    return fine;
}

void random_pool(rng *r, random_image *x, ptac_window2d *window, ptac_image *image,
                 bool may_dilate)
{
    while (!try_pool(r, x, window, image, may_dilate))
        ;
}

bool typical_pool(int i, random_image *x, ptac_window2d *window, ptac_image *image)
{
    static const ptac_window axes[] = {{2, 2, 0, 1}, {3, 2, 1, 1}};

    *x = (random_image){.n_dims = 4, .sizes = {2, 32, 28, 56}, .dtype = PTAC_F32};
    x->channels_last = i & 1;
    window->h = window->w = axes[i >> 1 & 1];
    window->ceil_mode = false;
    if (i > 3 || !read_image(x, image) || !fits(window, image))
        return false;
    set_outputs(x, image);
    return true;
}

static int64_t axis_taps(const ptac_window *axis, int64_t size, int64_t n_outputs)
{
    int64_t n = 0, first, last;

    for (int64_t i = 0; i < n_outputs; i++) {
        ptac_window_clip(axis, i * axis->stride - axis->padding, size, &first, &last);
        n += last - first;
    }
    return n;
}

int64_t pool_taps(const ptac_window2d *window, const ptac_image *image)
{
    return image->n * image->channels * axis_taps(&window->h, image->h, image->out_h) *
           axis_taps(&window->w, image->w, image->out_w);
}

static int64_t random_share(rng *r, int64_t size)
{
    switch (rng_below(r, 4)) {
    case 0:
        return 1;
    case 1: /* even, where the number has a divisor */
        for (int64_t n = rng_between(r, 1, size); n > 1; n--)
            if (size % n == 0)
                return n;
        return size;
    case 2:
        return rng_between(r, 1, size);
    default:
        return rng_between(r, 1, size + size / 2 + 3);
    }
}

static bool try_adaptive_pool(rng *r, random_image *x, ptac_image *image)
{
    static const ptac_window2d one = {{1, 1, 0, 1}, {1, 1, 0, 1}, false};
    const int64_t line = 64;

    random_layout(r, x);
    random_sizes(r, &one, x);
    if (rng_chance(r, 60)) {
        const int64_t step = line / (int64_t)dtype_bytes(x->dtype);
        int64_t *channels = &x->sizes[x->n_dims - 3];

        *channels = (*channels + step - 1) / step * step;
    }
    if (product(x->sizes, x->n_dims) > MANY_ELEMENTS || !read_image(x, image))
        return false;
    image->out_h = random_share(r, image->h);
    image->out_w = rng_chance(r, 50) && image->out_h <= 2 * image->w
                       ? image->out_h
                       : random_share(r, image->w);
    set_outputs(x, image);
    return product(x->out_sizes, x->n_dims) <= MANY_ELEMENTS;
}

void random_adaptive_pool(rng *r, random_image *x, ptac_image *image)
{
    while (!try_adaptive_pool(r, x, image))
        ;
}

void note_pool(test_call *c, const random_image *x, const ptac_window2d *window,
               const ptac_image *image)
{
    const ptac_window *h = &window->h, *w = &window->w;

    snprintf(c->note, sizeof c->note,
             "%s %s %lldx%lldx%lldx%lld, kernel %lldx%lld, stride %lldx%lld, "
             "padding %lldx%lld, dilation %lldx%lld%s, out %lldx%lld",
             ptac_dtype_name(x->dtype), image->channels_last ? "nhwc" : "nchw",
             (long long)image->n, (long long)image->channels, (long long)image->h,
             (long long)image->w, (long long)h->kernel, (long long)w->kernel,
             (long long)h->stride, (long long)w->stride, (long long)h->padding,
             (long long)w->padding, (long long)h->dilation, (long long)w->dilation,
             window->ceil_mode ? ", ceil" : "", (long long)image->out_h,
             (long long)image->out_w);
}
