/*
 * pool.c - reading pooling's arguments, and the sizes of its outputs.
 */
#include "bind/torch/overrides/pool/pool.h"

ptac_reason ptac_pool_output(const ptac_arguments *args, const ptac_call *call,
                             const ptac_image *image, ptac_outputs *outputs)
{
    return ptac_pool_output_of(args, call, image, 0, outputs);
}

ptac_reason ptac_pool_output_of(const ptac_arguments *args, const ptac_call *call,
                                const ptac_image *image, int64_t n_slabs,
                                ptac_outputs *outputs)
{
    const ptac_view *x = &args->at[args->of->self].view;

    for (int i = 0; i < x->n_dims; i++)
        outputs->own_sizes[i] = x->sizes[i];
    if (n_slabs)
        outputs->own_sizes[x->n_dims - 3] = n_slabs;
    outputs->own_sizes[x->n_dims - 2] = image->out_h;
    outputs->own_sizes[x->n_dims - 1] = image->out_w;
    ptac_outputs_are(outputs, x->n_dims, outputs->own_sizes);
    outputs->channels_last = image->channels_last;
    if (args->of->self == 0)
        return PTAC_TAKE;
    for (int i = 0; i < call->n_inputs; i++) {
        const ptac_view *input = &call->inputs[i];

        if (input->dtype != (i == 0 ? x->dtype : PTAC_I64))
            return PTAC_DTYPE;
        if (!ptac_view_has_sizes(input, x->n_dims, outputs->own_sizes))
            return PTAC_ARGUMENT;
    }
    ptac_outputs_are(outputs, x->n_dims, x->sizes);
    return PTAC_TAKE;
}

ptac_reason ptac_pool_read(const ptac_arguments *args, const ptac_call *call,
                           bool has_dilation, ptac_window2d *window, ptac_image *image,
                           ptac_outputs *outputs)
{
    static const ptac_dims one = {{1, 1}, 2};
    const ptac_argument *options = ptac_options(args);
    const ptac_dims *kernel = &options[0].ints, *given = &options[1].ints,
                    *stride = given->n ? given : kernel, *padding = &options[2].ints,
                    *dilation = has_dilation ? &options[3].ints : &one;
    ptac_reason why = ptac_image_of(&args->at[args->of->self].view, image);

    if (why)
        return why;
    if (!ptac_dims_is_pair(kernel) || !ptac_dims_is_pair(stride) ||
        !ptac_dims_is_pair(padding) || !ptac_dims_is_pair(dilation))
        return PTAC_ARGUMENT;
    window->h = (ptac_window){kernel->values[0], stride->values[0], padding->values[0],
                              dilation->values[0]};
    window->w = (ptac_window){kernel->values[1], stride->values[1], padding->values[1],
                              dilation->values[1]};
    window->ceil_mode = options[3 + has_dilation].truth;
    why = ptac_window2d_fit(window, image);
    if (why)
        return why;
    return ptac_pool_output(args, call, image, outputs);
}
