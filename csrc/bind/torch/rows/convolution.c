/*
 * convolution.c - which convolutions rows of ours may serve.
 */
#include "bind/torch/rows/convolution.h"

/* A dense batch; *channels_last says of which layout it is to torch. */
static ptac_reason image_reason(const ptac_view *view, bool *channels_last)
{
    const ptac_reason why = ptac_floats_reason(view, 4);

    if (why)
        return why;
    *channels_last = ptac_view_suggests_channels_last(view);
    if (*channels_last ? !ptac_view_is_channels_last(view)
                       : !ptac_view_is_contiguous(view))
        return PTAC_LAYOUT;
    return PTAC_TAKE;
}

/* Outputs along one axis; 0 where there are none. */
static int n_outputs(int size, int kernel, int stride, int padding)
{
    const int room = size + 2 * padding - kernel;

    return room >= 0 ? room / stride + 1 : 0;
}

bool ptac_conv_precision_is_lowered(void)
{
    int precision;

    if (!T.global_context || !T.float32_precision)
        return false;
    precision =
        T.float32_precision(T.global_context(), AT_FLOAT32_MKLDNN, AT_FLOAT32_CONV);
    return precision == AT_FLOAT32_TF32 || precision == AT_FLOAT32_BF16;
}

/* One group, no dilation, and sizes that our ints can hold. */
static ptac_reason geometry_reason(const ptac_view *x, const ptac_view *w,
                                   const ptac_geometry *geo)
{
    enum { MOST = 1 << 24 };

    if (geo->groups != 1 || !ptac_dims_is_pair(&geo->stride) ||
        !ptac_dims_is_pair(&geo->padding) || !ptac_dims_is_pair(&geo->dilation) ||
        !ptac_dims_is_pair(&geo->output_padding))
        return PTAC_ARGUMENT;
    for (int i = 0; i < 2; i++)
        if (geo->dilation.values[i] != 1 || geo->output_padding.values[i] != 0 ||
            geo->stride.values[i] < 1 || geo->padding.values[i] < 0)
            return PTAC_ARGUMENT;
    for (int i = 0; i < 4; i++)
        if (x->sizes[i] > MOST || w->sizes[i] > MOST ||
            geo->stride.values[i % 2] > MOST || geo->padding.values[i % 2] > MOST)
            return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* A transposed convolution of stride 1 is the gradient of the data of another one. */
static ptac_reason transpose(ptac_conv2d *p, int64_t w_channels)
{
    if (p->stride_h != 1 || p->stride_w != 1)
        return PTAC_ARGUMENT;
    p->result = PTAC_CONV_DATA;
    p->in_channels = (int)w_channels;
    p->out_h = p->h;
    p->out_w = p->w;
    p->h += p->kernel_h - 1 - 2 * p->pad_h;
    p->w += p->kernel_w - 1 - 2 * p->pad_w;
    return p->h <= 0 || p->w <= 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

ptac_reason ptac_conv_params(const ptac_view *x, const ptac_view *w,
                             const ptac_geometry *geo, ptac_conv2d *p)
{
    const int64_t *stride = geo->stride.values, *padding = geo->padding.values;
    bool x_is_nhwc = false, w_is_nhwc = false;
    ptac_reason why = image_reason(x, &x_is_nhwc);

    if (!why)
        why = image_reason(w, &w_is_nhwc);
    if (!why && geo->is_transposed && (x_is_nhwc || w_is_nhwc))
        why = PTAC_LAYOUT;
    if (!why)
        why = geometry_reason(x, w, geo);
    if (!why && ptac_conv_precision_is_lowered())
        why = PTAC_MODE;
    if (why)
        return why;
    *p = (ptac_conv2d){
        .n = x->sizes[0],
        .in_channels = (int)x->sizes[1],
        .out_channels = (int)w->sizes[0],
        .h = (int)x->sizes[2],
        .w = (int)x->sizes[3],
        .kernel_h = (int)w->sizes[2],
        .kernel_w = (int)w->sizes[3],
        .stride_h = (int)stride[0],
        .stride_w = (int)stride[1],
        .pad_h = (int)padding[0],
        .pad_w = (int)padding[1],
        .channels_last = x_is_nhwc || w_is_nhwc, /* and so is what torch answers */
    };
    if (w->sizes[!geo->is_transposed] != x->sizes[1])
        return PTAC_ARGUMENT; /* torch complains in its own words */
    if (geo->is_transposed)
        return transpose(p, w->sizes[1]);
    p->out_h = n_outputs(p->h, p->kernel_h, p->stride_h, p->pad_h);
    p->out_w = n_outputs(p->w, p->kernel_w, p->stride_w, p->pad_w);
    return p->out_h == 0 || p->out_w == 0 ? PTAC_ARGUMENT : PTAC_TAKE;
}

void ptac_conv_output_sizes(const ptac_conv2d *p, int64_t sizes[4])
{
    const bool is_data = p->result == PTAC_CONV_DATA;

    sizes[0] = p->n;
    sizes[1] = is_data ? p->in_channels : p->out_channels;
    sizes[2] = is_data ? p->h : p->out_h >> p->with_pool;
    sizes[3] = is_data ? p->w : p->out_w >> p->with_pool;
}

ptac_reason ptac_conv_check(const ptac_call *call, const ptac_geometry *geo,
                            ptac_conv2d *params)
{
    const ptac_reason why =
        ptac_conv_params(&call->inputs[0], &call->inputs[1], geo, params);
    int64_t sizes[4];

    if (why || call->n_inputs < 3)
        return why;
    ptac_conv_output_sizes(params, sizes);
    return ptac_vector_reason(&call->inputs[2], sizes[1]);
}
