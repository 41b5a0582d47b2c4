/*
 * convolution_bf16.c - convolutions of operands rounded to bfloat16, by oneDNN.
 *
 * Any geometry of images, transposed ones too; in NHWC without groups and dilation.
 * Bias, and what else follows in a chain, is added in float32.
 */
#include "bind/torch/rows/bf16.h"
#include "ops/bf16/cast.h"
#include "ops/conv/conv2d.h"

static bool has_convolution(void)
{
    return T.aoti_torch_cpu_convolution && T.aoti_torch_cpu_convolution_backward;
}

/* Whether a tap of a dilated kernel meets no place of the image. */
static bool misses(int size, int kernel, int pad, int dilation)
{
    return dilation > 1 && (dilation > size || pad > (kernel - 1) * dilation);
}

/*
 * What oneDNN's kernels of bfloat16 crash at, or write garbage: taps that all miss, and
 * steps along a single column of results.
 */
static bool is_unsound(const ptac_conv2d *p)
{
    return (p->out_w == 1 && p->stride_w > 1) ||
           misses(p->h, p->kernel_h, p->pad_h, p->dilation_h) ||
           misses(p->w, p->kernel_w, p->pad_w, p->dilation_w);
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!has_convolution())
        return PTAC_ARGUMENT;
    /* Among those of NHWC no table tells groups and dilation. */
    if (call->inputs[0].n_dims != 4 ||
        (p->channels_last && (p->groups > 1 || p->dilation_h > 1 || p->dilation_w > 1)))
        return PTAC_SHAPE;
    return p->with_pool || p->act == PTAC_ACT_RELU6 || is_unsound(p) ? PTAC_SHAPE
                                                                     : PTAC_TAKE;
}

typedef struct geometry {
    int64_t stride[2], padding[2], dilation[2], none[2];
} geometry;

static geometry geometry_of(const ptac_conv2d *p)
{
    return (geometry){
        .stride = {p->stride_h, p->stride_w},
        .padding = {p->pad_h, p->pad_w},
        .dilation = {p->dilation_h, p->dilation_w},
    };
}

/* Ours has the strides of stock's, which the rounded copy has as well. */
static bool is_as_expected(at_tensor narrow, const ptac_view *wide, ptac_view *view)
{
    ptac_view_of(narrow, view);
    return view->dtype == PTAC_BF16 && ptac_view_is_alike(view, wide) &&
           ptac_view_is_dense(view);
}

/* What follows the sums of an image with so many channels and pixels. */
static ptac_bf16_epilogue epilogue_of(const ptac_call *call, int n_channels,
                                      int64_t n_pixels)
{
    const ptac_conv2d *p = call->params;

    return (ptac_bf16_epilogue){
        .scale = call->n_inputs > 3 ? call->inputs[3].data : NULL,
        .shift = call->n_inputs > 2 ? call->inputs[2].data : NULL,
        .n_channels = n_channels,
        .n_planes = p->n * (p->channels_last ? n_pixels : n_channels),
        .size = p->channels_last ? 1 : n_pixels,
        .with_relu = p->act == PTAC_ACT_RELU,
        .channels_last = p->channels_last,
    };
}

/* y, or the gradient of what a transposed convolution was given. */
static ptac_status forward(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const geometry geo = geometry_of(p);
    const ptac_bf16_epilogue epilogue =
        epilogue_of(call, p->out_channels, (int64_t)p->out_h * p->out_w);
    AT_OWNED at_tensor x = NULL, w = NULL, y = NULL;
    ptac_view view;

    if (ptac_bf16_alike(&call->inputs[0], &x) || ptac_bf16_alike(&call->inputs[1], &w))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_convolution(x, w, NULL, geo.stride, 2, geo.padding, 2,
                                     geo.dilation, 2, 0, geo.none, 2, p->groups, &y))
        return PTAC_UNSUPPORTED;
    if (!is_as_expected(y, &call->outputs[0], &view))
        return PTAC_UNSUPPORTED;
    ptac_bf16_widen_channels(view.data, call->outputs[0].data, &epilogue);
    return PTAC_OK;
}

/* Memory that nobody reads: of what is not there but whose sizes count. */
static at_error unread(const ptac_conv2d *p, bool is_weight, at_tensor *made)
{
    const int64_t sizes[4] = {
        is_weight ? p->out_channels : p->n,
        is_weight ? p->in_channels / p->groups : p->in_channels,
        is_weight ? p->kernel_h : p->h,
        is_weight ? p->kernel_w : p->w,
    };

    return ptac_new_images(PTAC_BF16, sizes, p->channels_last, made, NULL);
}

/* Gradients that oneDNN makes of a convolution, as the call's outputs lie. */
static ptac_status compute_gradients(const ptac_call *call, at_tensors *grads,
                                     ptac_view views[2])
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    const geometry geo = geometry_of(p);
    const int64_t n_biases = p->out_channels, *biases = &n_biases;
    const int32_t mask[3] = {!is_weight, is_weight, call->n_outputs > 1};
    AT_OWNED at_tensor grad = NULL, x = NULL, w = NULL;

    if (ptac_bf16_alike(&call->inputs[is_weight], &grad) ||
        (is_weight ? ptac_bf16_alike(&call->inputs[0], &x) : unread(p, false, &x)) ||
        (is_weight ? unread(p, true, &w) : ptac_bf16_alike(&call->inputs[1], &w)))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_convolution_backward(
            grad, x, w, mask[2] ? &biases : NULL, 1, geo.stride, 2, geo.padding, 2,
            geo.dilation, 2, 0, geo.none, 2, p->groups, mask, 3, &grads->at[0],
            &grads->at[1], &grads->at[2]))
        return PTAC_UNSUPPORTED;
    if (!is_as_expected(grads->at[is_weight], &call->outputs[0], &views[0]) ||
        (mask[2] && !is_as_expected(grads->at[2], &call->outputs[1], &views[1])))
        return PTAC_UNSUPPORTED;
    return PTAC_OK;
}

static ptac_status backward(const ptac_call *call)
{
    AT_OWNED_ALL at_tensors grads = {{NULL}};
    ptac_view views[2];
    const ptac_status status = compute_gradients(call, &grads, views);

    for (int i = 0; status == PTAC_OK && i < call->n_outputs; i++)
        ptac_bf16_widen(views[i].data, call->outputs[i].data, views[i].n_elements);
    return status;
}

/* A transposed convolution is the gradient of one's data, to which a bias is added. */
static ptac_status transposed(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const ptac_bf16_epilogue epilogue =
        epilogue_of(call, p->in_channels, (int64_t)p->h * p->w);
    AT_OWNED_ALL at_tensors grads = {{NULL}};
    ptac_view views[2];
    const ptac_status status = compute_gradients(call, &grads, views);

    if (status == PTAC_OK)
        ptac_bf16_widen_channels(views[0].data, call->outputs[0].data, &epilogue);
    return status;
}

static ptac_status run(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_FORWARD ? forward(call) : transposed(call);
}

static ptac_status run_gradient(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;

    return p->result == PTAC_CONV_FORWARD ? forward(call) : backward(call);
}

PTAC_BF16_ROW(CONV2D, "bf16", accepts, run)
PTAC_BF16_ROW(CONV2D_BACKWARD, "bf16", accepts, run_gradient)
