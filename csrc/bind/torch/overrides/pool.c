/*
 * pool.c - reading pooling's arguments, and the sizes of its outputs.
 */
#include "bind/torch/overrides/pool.h"

ptac_reason ptac_read_window(const ptac_arguments *args, int first, bool has_dilation,
                             const ptac_view *x, ptac_window2d *window,
                             ptac_image *image)
{
    static const ptac_dims one = {{1, 1}, 2};
    const ptac_dims *kernel = &args->at[first].ints, *given = &args->at[first + 1].ints,
                    *stride = given->n ? given : kernel,
                    *padding = &args->at[first + 2].ints,
                    *dilation = has_dilation ? &args->at[first + 3].ints : &one;
    const bool ceil_mode = args->at[first + 3 + has_dilation].truth;
    ptac_window *h = &window->h, *w = &window->w;
    const ptac_reason why = ptac_image_of(x, image);

    if (why)
        return why;
    if (!ptac_dims_is_pair(kernel) || !ptac_dims_is_pair(stride) ||
        !ptac_dims_is_pair(padding) || !ptac_dims_is_pair(dilation))
        return PTAC_ARGUMENT;
    *h = (ptac_window){kernel->values[0], stride->values[0], padding->values[0],
                       dilation->values[0]};
    *w = (ptac_window){kernel->values[1], stride->values[1], padding->values[1],
                       dilation->values[1]};
    window->ceil_mode = ceil_mode;
    if (!ptac_window_is_valid(h) || !ptac_window_is_valid(w))
        return PTAC_ARGUMENT;
    image->out_h = ptac_window_outputs(h, image->h, ceil_mode);
    image->out_w = ptac_window_outputs(w, image->w, ceil_mode);
    if (image->out_h < 1 || image->out_w < 1)
        return PTAC_ARGUMENT;
    if (!ptac_window_always_hits(h, image->h, image->out_h) ||
        !ptac_window_always_hits(w, image->w, image->out_w))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

ptac_reason ptac_pooled(const ptac_view *x, const ptac_image *image,
                        ptac_output *output)
{
    for (int i = 0; i < x->n_dims; i++)
        output->own_sizes[i] = x->sizes[i];
    output->own_sizes[x->n_dims - 2] = image->out_h;
    output->own_sizes[x->n_dims - 1] = image->out_w;
    output->sizes = output->own_sizes;
    output->n_dims = x->n_dims;
    output->channels_last = image->channels_last;
    return PTAC_TAKE;
}

ptac_reason ptac_pool_gradient(const ptac_call *call, const ptac_view *x,
                               const ptac_image *image, ptac_output *output)
{
    ptac_pooled(x, image, output);
    for (int i = 0; i < call->n_inputs; i++) {
        const ptac_view *input = &call->inputs[i];

        if (input->dtype != (i == 0 ? x->dtype : PTAC_I64))
            return PTAC_DTYPE;
        if (!ptac_view_has_sizes(input, x->n_dims, output->sizes))
            return PTAC_ARGUMENT;
    }
    output->sizes = x->sizes;
    return PTAC_TAKE;
}
