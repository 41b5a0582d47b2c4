/*
 * depthwise.c - which depthwise convolutions rows of ours may serve.
 */
#include "bind/torch/rows/convolution/depthwise.h"

bool ptac_is_depthwise(const ptac_view *x, const ptac_view *w, int64_t groups)
{
    return groups > 1 && (x->n_dims == PTAC_SIGNAL || x->n_dims == PTAC_IMAGES) &&
           w->n_dims == x->n_dims && x->sizes[1] == groups && w->sizes[0] == groups;
}

/*
 * A dense batch and weights that lie [channel][row][column] whatever their layout is to
 * torch, which convolves in channels_last where one of them is so.
 */
static ptac_reason layout_reason(const ptac_view *x, const ptac_view *w,
                                 bool *channels_last)
{
    *channels_last =
        ptac_view_suggests_channels_last(x) || ptac_view_suggests_channels_last(w);
    if (!(*channels_last ? ptac_view_is_channels_last(x) : ptac_view_is_contiguous(x)))
        return PTAC_LAYOUT;
    return ptac_view_is_contiguous(w) || ptac_view_is_channels_last(w) ? PTAC_TAKE
                                                                       : PTAC_LAYOUT;
}

/*
 * Where results in channels_last may have other strides in stock: without oneDNN, which
 * is not called for all 1x1 kernels either.
 */
static ptac_reason strides_reason(const ptac_depthwise *p)
{
    if (ptac_onednn_is_off())
        return PTAC_MODE;
    return p->kernel_h == 1 && p->kernel_w == 1 ? PTAC_LAYOUT : PTAC_TAKE;
}

static ptac_reason read_sizes(const ptac_view *x, const ptac_view *w, ptac_depthwise *p)
{
    const int last = x->n_dims - 1;
    const bool is_signal = x->n_dims == PTAC_SIGNAL;

    for (int i = 1; i <= last; i++)
        if (x->sizes[i] > PTAC_CONV_MOST || w->sizes[i] > PTAC_CONV_MOST)
            return PTAC_SHAPE;
    p->n = x->sizes[0];
    p->channels = (int)x->sizes[1];
    p->h = is_signal ? 1 : (int)x->sizes[2];
    p->w = (int)x->sizes[last];
    p->kernel_h = is_signal ? 1 : (int)w->sizes[2];
    p->kernel_w = (int)w->sizes[last];
    return w->sizes[1] == 1 ? PTAC_TAKE : PTAC_ARGUMENT;
}

ptac_reason ptac_depthwise_params(const ptac_view *x, const ptac_view *w,
                                  const ptac_geometry *geo, ptac_depthwise *p)
{
    ptac_reason why = ptac_floats_reason(x, x->n_dims);
    ptac_conv_axis axes[PTAC_CONV_AXES];

    *p = (ptac_depthwise){.n = 0};
    if (!why)
        why = ptac_floats_reason(w, x->n_dims);
    if (!why)
        why = layout_reason(x, w, &p->channels_last);
    if (!why && (!ptac_conv_axes(geo, x->n_dims, axes) || axes[1].output_padding ||
                 axes[2].output_padding))
        why = PTAC_ARGUMENT;
    if (!why)
        why = read_sizes(x, w, p);
    if (!why && p->channels_last)
        why = strides_reason(p);
    if (why)
        return why;
    p->stride_h = axes[1].stride;
    p->stride_w = axes[2].stride;
    p->pad_h = axes[1].padding;
    p->pad_w = axes[2].padding;
    p->dilation_h = axes[1].dilation;
    p->dilation_w = axes[2].dilation;
    p->out_h = ptac_conv_n_outputs(p->h, p->kernel_h, &axes[1]);
    p->out_w = ptac_conv_n_outputs(p->w, p->kernel_w, &axes[2]);
    return p->out_h == 0 || p->out_w == 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

void ptac_depthwise_output_sizes(const ptac_depthwise *p, int n_dims, int64_t sizes[4])
{
    sizes[0] = p->n;
    sizes[1] = p->channels;
    sizes[2] = p->out_h;
    sizes[n_dims - 1] = p->out_w;
}
