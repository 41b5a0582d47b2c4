/*
 * volume_pool.c - reading 3-d pooling's arguments, and its windows.
 */
#include "bind/torch/overrides/pool/volume_pool.h"

#include "bind/torch/overrides/pool/pool.h"

/* Three elements, or one that stands for all. */
static bool read_sizes(const ptac_dims *given, int64_t sizes[3])
{
    for (int i = 0; i < 3; i++)
        sizes[i] = given->values[given->n == 3 ? i : 0];
    return given->n == 1 || given->n == 3;
}

ptac_reason ptac_volume_pool_read(const ptac_arguments *args, const ptac_call *call,
                                  bool has_dilation, ptac_window2d *window,
                                  ptac_image *slab, ptac_depth *depth,
                                  ptac_outputs *outputs)
{
    static const ptac_dims one = {{1}, 1};
    const ptac_argument *options = ptac_options(args);
    const ptac_dims *kernel = &options[0].ints, *given = &options[1].ints,
                    *padding = &options[2].ints;
    int64_t k[3], s[3], p[3], d[3];
    ptac_reason why = ptac_volume_of(&args->at[args->of->self].view, slab, depth);

    if (why)
        return why;
    if (!read_sizes(kernel, k) || !read_sizes(given->n ? given : kernel, s) ||
        !read_sizes(padding, p) ||
        !read_sizes(has_dilation ? &options[3].ints : &one, d))
        return PTAC_ARGUMENT;
    depth->window = (ptac_window){k[0], s[0], p[0], d[0]};
    window->h = (ptac_window){k[1], s[1], p[1], d[1]};
    window->w = (ptac_window){k[2], s[2], p[2], d[2]};
    window->ceil_mode = options[3 + has_dilation].truth;
    why = ptac_window3d_fit(window, slab, depth);
    if (why)
        return why;
    return ptac_pool_output_of(args, call, slab, depth->outputs, outputs);
}
