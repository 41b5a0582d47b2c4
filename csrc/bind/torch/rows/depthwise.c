/*
 * depthwise.c - which depthwise convolutions rows of ours may serve.
 */
#include "bind/torch/rows/depthwise.h"

enum {
    SIGNAL = 3, /* dimensions: [N, C, L] */
    IMAGES = 4,
};

bool ptac_is_depthwise(const ptac_view *x, const ptac_view *w, int64_t groups)
{
    return groups > 1 && (x->n_dims == SIGNAL || x->n_dims == IMAGES) &&
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

/* An option's elements for rows and columns; a signal has one, for columns. */
static bool read_pair(const ptac_dims *given, int n_dims, int of_rows, int least,
                      int pair[2])
{
    enum { MOST = 1 << 24 };

    if (n_dims == SIGNAL ? given->n != 1 : !ptac_dims_is_pair(given))
        return false;
    for (int i = 0; i < 2; i++) {
        const int64_t value = given->values[i];

        if (value < least || value > MOST)
            return false;
        pair[i] = (int)value;
    }
    if (n_dims == SIGNAL)
        pair[0] = of_rows;
    return true;
}

/* Outputs along one axis; 0 where there are none. */
static int n_outputs(int64_t size, int64_t kernel, int stride, int padding,
                     int64_t dilation)
{
    const int64_t room = size + 2 * (int64_t)padding - (kernel - 1) * dilation - 1;

    return room >= 0 ? (int)(room / stride) + 1 : 0;
}

static ptac_reason read_geometry(const ptac_geometry *geo, int n_dims,
                                 ptac_depthwise *p)
{
    int stride[2], padding[2], dilation[2], none[2];

    if (!read_pair(&geo->stride, n_dims, 1, 1, stride) ||
        !read_pair(&geo->padding, n_dims, 0, 0, padding) ||
        !read_pair(&geo->dilation, n_dims, 1, 1, dilation) ||
        !read_pair(&geo->output_padding, n_dims, 0, 0, none) || none[0] || none[1])
        return PTAC_ARGUMENT;
    p->stride_h = stride[0];
    p->stride_w = stride[1];
    p->pad_h = padding[0];
    p->pad_w = padding[1];
    p->dilation_h = dilation[0];
    p->dilation_w = dilation[1];
    return PTAC_TAKE;
}

static ptac_reason read_sizes(const ptac_view *x, const ptac_view *w, ptac_depthwise *p)
{
    enum { MOST = 1 << 24 };
    const int last = x->n_dims - 1;
    const bool is_signal = x->n_dims == SIGNAL;

    for (int i = 1; i <= last; i++)
        if (x->sizes[i] > MOST || w->sizes[i] > MOST)
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

    *p = (ptac_depthwise){.n = 0};
    if (!why)
        why = ptac_floats_reason(w, x->n_dims);
    if (!why)
        why = layout_reason(x, w, &p->channels_last);
    if (!why)
        why = read_geometry(geo, x->n_dims, p);
    if (!why)
        why = read_sizes(x, w, p);
    if (!why && ptac_conv_precision_is_lowered())
        why = PTAC_MODE;
    if (why)
        return why;
    p->out_h = n_outputs(p->h, p->kernel_h, p->stride_h, p->pad_h, p->dilation_h);
    p->out_w = n_outputs(p->w, p->kernel_w, p->stride_w, p->pad_w, p->dilation_w);
    return p->out_h == 0 || p->out_w == 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

void ptac_depthwise_output_sizes(const ptac_depthwise *p, int n_dims, int64_t sizes[4])
{
    sizes[0] = p->n;
    sizes[1] = p->channels;
    sizes[2] = p->out_h;
    sizes[n_dims - 1] = p->out_w;
}
