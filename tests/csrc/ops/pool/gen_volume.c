/*
 * gen_volume.c - the geometry of random 3-d pooling calls.
 */
#include "gen_volume.h"

#include "gen_pool.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST_ELEMENTS = 150000,
    MOST_TAPS = 1000000, /* of all windows together: milliseconds */
};

/* The slab's tensor with a depth between channels and rows. */
static void deepen(const random_image *slab, int64_t size, int64_t outputs,
                   random_volume *x)
{
    const int channel = slab->n_dims - 3;

    *x = (random_volume){.n_dims = slab->n_dims + 1, .dtype = slab->dtype};
    for (int i = 0; i < slab->n_dims; i++) {
        x->sizes[i + (i > channel)] = slab->sizes[i];
        x->out_sizes[i + (i > channel)] = slab->out_sizes[i];
    }
    x->sizes[channel + 1] = size;
    x->out_sizes[channel + 1] = outputs;
}

/* The volume as bind reads it off the tensor; false where it is none for us. */
static bool read_volume(random_volume *x, bool channels_last, ptac_image *slab,
                        ptac_depth *depth)
{
    test_call scratch;

    memset(&scratch, 0, sizeof scratch);
    test_input(&scratch, x->dtype, x->n_dims, x->sizes, channels_last);

    const bool fine = !ptac_volume_of(&scratch.call.inputs[0], slab, depth);

    test_call_clear(&scratch);
    x->channels_last = slab->channels_last;
    return fine;
}

static int64_t n_elements(const int64_t *sizes, int n_dims)
{
    int64_t n = 1;

    for (int i = 0; i < n_dims; i++)
        n *= sizes[i];
    return n;
}

static ptac_window random_axis(rng *r, const ptac_window2d *window, bool may_dilate)
{
    ptac_window axis = {rng_between(r, 1, 4), rng_between(r, 1, 3), 0, 1};

    if (rng_chance(r, 50))
        return window->h; /* as in networks */
    axis.padding = rng_between(r, 0, axis.kernel / 2);
    if (may_dilate && rng_chance(r, 25))
        axis.dilation = 2;
    return axis;
}

static bool try_pool(rng *r, random_volume *x, ptac_window2d *window, ptac_image *slab,
                     ptac_depth *depth, bool may_dilate)
{
    random_image image;

    random_pool(r, &image, window, slab, may_dilate);
    depth->window = random_axis(r, window, may_dilate);
    depth->size = rng_between(r, 1, ptac_window_reach(&depth->window) + 4);
    deepen(&image, depth->size, 1, x);
    if (n_elements(x->sizes, x->n_dims) > MOST_ELEMENTS ||
        !read_volume(x, image.channels_last, slab, depth) ||
        ptac_window3d_fit(window, slab, depth))
        return false;
    deepen(&image, depth->size, depth->outputs, x);
    x->channels_last = slab->channels_last;
    return n_elements(x->out_sizes, x->n_dims) <=
           MOST_TAPS / (depth->window.kernel * window->h.kernel * window->w.kernel);
}

void random_volume_pool(rng *r, random_volume *x, ptac_window2d *window,
                        ptac_image *slab, ptac_depth *depth, bool may_dilate)
{
    while (!try_pool(r, x, window, slab, depth, may_dilate))
        ;
}

static bool try_adaptive_pool(rng *r, random_volume *x, ptac_image *slab,
                              ptac_depth *depth)
{
    random_image image;
    ptac_image pooled;

    random_adaptive_pool(r, &image, &pooled);
    depth->size = rng_between(r, 1, 9);
    depth->outputs = rng_chance(r, 50) ? 1 : rng_between(r, 1, depth->size + 2);
    deepen(&image, depth->size, depth->outputs, x);
    if (n_elements(x->sizes, x->n_dims) > MOST_ELEMENTS ||
        n_elements(x->out_sizes, x->n_dims) > MOST_ELEMENTS ||
        !read_volume(x, false, slab, depth))
        return false;
    slab->out_h = pooled.out_h;
    slab->out_w = pooled.out_w;
    return !slab->channels_last;
}

void random_adaptive_volume_pool(rng *r, random_volume *x, ptac_image *slab,
                                 ptac_depth *depth)
{
    while (!try_adaptive_pool(r, x, slab, depth))
        ;
}

void note_volume_pool(test_call *c, const random_volume *x, const ptac_window2d *window,
                      const ptac_image *slab, const ptac_depth *depth)
{
    const ptac_window *d = &depth->window;
    random_image image = {.dtype = x->dtype};
    size_t n;

    note_pool(c, &image, window, slab);
    n = strlen(c->note);
    snprintf(c->note + n, sizeof c->note - n,
             "; depth %lld, kernel %lld, stride %lld, padding %lld, dilation %lld, "
             "out %lld",
             (long long)depth->size, (long long)d->kernel, (long long)d->stride,
             (long long)d->padding, (long long)d->dilation, (long long)depth->outputs);
}
