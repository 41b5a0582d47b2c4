/*
 * convolution.c - which convolutions rows of ours may serve.
 */
#include "bind/torch/rows/convolution/convolution.h"

#include "bind/torch/dispatch.h"

/*
 * A dense batch; *channels_last says of which layout it is to torch. Volumes are served
 * in NCDHW alone.
 */
static ptac_reason image_reason(const ptac_view *view, int n_dims, bool *channels_last)
{
    const ptac_reason why = n_dims >= PTAC_SIGNAL && n_dims <= PTAC_VOLUMES
                                ? ptac_floats_reason(view, n_dims)
                                : PTAC_SHAPE;

    if (why)
        return why;
    *channels_last = ptac_view_suggests_channels_last(view);
    if (*channels_last ? !ptac_view_is_channels_last(view)
                       : !ptac_view_is_contiguous(view))
        return PTAC_LAYOUT;
    if (*channels_last && n_dims == PTAC_VOLUMES)
        return PTAC_LAYOUT;
    return PTAC_TAKE;
}

int ptac_conv_n_outputs(int64_t size, int64_t kernel, const ptac_conv_axis *axis)
{
    const int64_t room =
        size + 2 * (int64_t)axis->padding - (kernel - 1) * axis->dilation - 1;

    return room >= 0 ? (int)(room / axis->stride) + 1 : 0;
}

/* An option's elements for each axis; those of images and signals are the last. */
static bool read_option(const ptac_dims *given, int n_dims, int of_others, int least,
                        int option[PTAC_CONV_AXES])
{
    const int n = n_dims - 2, n_others = PTAC_CONV_AXES - n;

    if (given->n != n && given->n != 1)
        return false;
    for (int i = 0; i < n_others; i++)
        option[i] = of_others;
    for (int i = 0; i < n; i++) {
        const int64_t value = given->values[given->n == 1 ? 0 : i];

        if (value < least || value > PTAC_CONV_MOST)
            return false;
        option[n_others + i] = (int)value;
    }
    return true;
}

bool ptac_conv_axes(const ptac_geometry *geo, int n_dims,
                    ptac_conv_axis axes[PTAC_CONV_AXES])
{
    int stride[PTAC_CONV_AXES], padding[PTAC_CONV_AXES];
    int dilation[PTAC_CONV_AXES], added[PTAC_CONV_AXES];

    if (!read_option(&geo->stride, n_dims, 1, 1, stride) ||
        !read_option(&geo->padding, n_dims, 0, 0, padding) ||
        !read_option(&geo->dilation, n_dims, 1, 1, dilation) ||
        !read_option(&geo->output_padding, n_dims, 0, 0, added))
        return false;
    for (int i = 0; i < PTAC_CONV_AXES; i++)
        axes[i] = (ptac_conv_axis){stride[i], padding[i], dilation[i], added[i]};
    return true;
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

const ptac_kernel *ptac_conv_admit(ptac_call *call)
{
    const ptac_kernel *row = ptac_admit(call);

    if (!row || !ptac_conv_precision_is_lowered())
        return row;
    ptac_refuse(call->op, PTAC_MODE);
    return NULL;
}

/*
 * Where stock's results may have other strides than ours: without oneDNN; and of a
 * single channel, of whose gradient both layouts are the same memory.
 */
static ptac_reason strides_reason(const ptac_view *w, const ptac_geometry *geo)
{
    if (ptac_onednn_is_off())
        return PTAC_MODE;
    return w->sizes[1] == 1 && geo->groups == 1 ? PTAC_LAYOUT : PTAC_TAKE;
}

/* Sizes that our ints can hold, and kernels that have taps. */
static ptac_reason sizes_reason(const ptac_view *x, const ptac_view *w)
{
    for (int i = 0; i < x->n_dims; i++) {
        if (x->sizes[i] > PTAC_CONV_MOST || w->sizes[i] > PTAC_CONV_MOST)
            return PTAC_SHAPE;
        if (i > 1 && (x->sizes[i] == 0 || w->sizes[i] == 0))
            return PTAC_ARGUMENT;
    }
    return PTAC_TAKE;
}

/*
 * Nor more multiply-adds, of which there are at least as many as elements of y, or
 * elements of x than an int64 counts. Doubles round: half of them leaves room for that.
 */
static ptac_reason work_reason(const ptac_conv2d *p)
{
    const double most = (double)(INT64_MAX / 2);
    const double planes =
        (double)(p->n > 0 ? p->n : 1) * (p->in_channels > 0 ? p->in_channels : 1);
    const double out_channels = p->out_channels > 0 ? p->out_channels : 1;
    const double taps = (double)p->kernel_d * p->kernel_h * p->kernel_w;
    const double places = (double)p->out_d * p->out_h * p->out_w;

    return planes * p->d * p->h * p->w < most &&
                   planes * out_channels * taps * places < most
               ? PTAC_TAKE
               : PTAC_SHAPE;
}

/* The image that the convolution would have made one of size outputs of; or 0. */
static int transposed_size(int size, int kernel, const ptac_conv_axis *axis)
{
    const int64_t n = (int64_t)(size - 1) * axis->stride - 2 * (int64_t)axis->padding +
                      (int64_t)(kernel - 1) * axis->dilation + axis->output_padding + 1;

    return n > 0 && n <= PTAC_CONV_MOST && ptac_conv_n_outputs(n, kernel, axis) == size
               ? (int)n
               : 0;
}

/* A transposed convolution is the gradient of the data of another one. */
static ptac_reason transpose(ptac_conv2d *p, int channels,
                             const ptac_conv_axis axes[PTAC_CONV_AXES])
{
    p->result = PTAC_CONV_DATA;
    p->in_channels = channels;
    p->out_d = p->d;
    p->out_h = p->h;
    p->out_w = p->w;
    p->d = transposed_size(p->d, p->kernel_d, &axes[0]);
    p->h = transposed_size(p->h, p->kernel_h, &axes[1]);
    p->w = transposed_size(p->w, p->kernel_w, &axes[2]);
    return p->d == 0 || p->h == 0 || p->w == 0 ? PTAC_ARGUMENT : work_reason(p);
}

/* A view's size along the axis that is so many before the last; 1 where it has none. */
static int size_along(const ptac_view *view, int before_last)
{
    const int dim = view->n_dims - 1 - before_last;

    return dim > 1 ? (int)view->sizes[dim] : 1;
}

/* All but sizes of results; about what is wrong torch complains in its own words. */
static ptac_reason fill(const ptac_view *x, const ptac_view *w,
                        const ptac_geometry *geo,
                        const ptac_conv_axis axes[PTAC_CONV_AXES], ptac_conv2d *p)
{
    *p = (ptac_conv2d){
        .n = x->sizes[0],
        .in_channels = (int)x->sizes[1],
        .out_channels = (int)w->sizes[0],
        .d = size_along(x, 2),
        .h = size_along(x, 1),
        .w = size_along(x, 0),
        .kernel_d = size_along(w, 2),
        .kernel_h = size_along(w, 1),
        .kernel_w = size_along(w, 0),
        .stride_d = axes[0].stride,
        .stride_h = axes[1].stride,
        .stride_w = axes[2].stride,
        .pad_d = axes[0].padding,
        .pad_h = axes[1].padding,
        .pad_w = axes[2].padding,
        .dilation_d = axes[0].dilation,
        .dilation_h = axes[1].dilation,
        .dilation_w = axes[2].dilation,
        .groups = (int)geo->groups,
        .is_transposed = geo->is_transposed,
    };
    if (geo->groups < 1 || geo->groups > PTAC_CONV_MOST ||
        p->in_channels % p->groups != 0 || p->out_channels % p->groups != 0)
        return PTAC_ARGUMENT;
    return w->sizes[!geo->is_transposed] * (geo->is_transposed ? 1 : p->groups) ==
                   x->sizes[1]
               ? PTAC_TAKE
               : PTAC_ARGUMENT;
}

ptac_reason ptac_conv_params(const ptac_view *x, const ptac_view *w,
                             const ptac_geometry *geo, ptac_conv2d *p)
{
    bool x_is_nhwc = false, w_is_nhwc = false;
    ptac_conv_axis axes[PTAC_CONV_AXES];
    ptac_reason why = image_reason(x, x->n_dims, &x_is_nhwc);

    if (!why)
        why = image_reason(w, x->n_dims, &w_is_nhwc);
    if (!why && geo->is_transposed && (x_is_nhwc || w_is_nhwc))
        why = PTAC_LAYOUT;
    if (!why && (x_is_nhwc || w_is_nhwc))
        why = strides_reason(w, geo);
    if (!why)
        why = sizes_reason(x, w);
    if (!why && !ptac_conv_axes(geo, x->n_dims, axes))
        why = PTAC_ARGUMENT;
    if (!why)
        why = fill(x, w, geo, axes, p);
    if (why)
        return why;
    p->channels_last = x_is_nhwc || w_is_nhwc; /* and so is what torch answers */
    if (geo->is_transposed)
        return transpose(p, (int)w->sizes[1] * p->groups, axes);
    p->out_d = ptac_conv_n_outputs(p->d, p->kernel_d, &axes[0]);
    p->out_h = ptac_conv_n_outputs(p->h, p->kernel_h, &axes[1]);
    p->out_w = ptac_conv_n_outputs(p->w, p->kernel_w, &axes[2]);
    return p->out_d == 0 || p->out_h == 0 || p->out_w == 0 ? PTAC_ARGUMENT
                                                           : work_reason(p);
}

void ptac_conv_output_sizes(const ptac_conv2d *p, int n_dims,
                            int64_t sizes[PTAC_VOLUMES])
{
    const bool is_data = p->result == PTAC_CONV_DATA;

    sizes[0] = p->n;
    sizes[1] = is_data ? p->in_channels : p->out_channels;
    sizes[2] = is_data ? p->d : p->out_d;
    if (n_dims > PTAC_SIGNAL)
        sizes[n_dims - 2] = is_data ? p->h : p->out_h >> p->with_pool;
    sizes[n_dims - 1] = is_data ? p->w : p->out_w >> p->with_pool;
}

ptac_reason ptac_conv_check(const ptac_call *call, const ptac_geometry *geo,
                            ptac_conv2d *params)
{
    const ptac_reason why =
        ptac_conv_params(&call->inputs[0], &call->inputs[1], geo, params);
    int64_t sizes[PTAC_VOLUMES];

    if (why || call->n_inputs < 3)
        return why;
    ptac_conv_output_sizes(params, call->inputs[0].n_dims, sizes);
    return ptac_vector_reason(&call->inputs[2], sizes[1]);
}
