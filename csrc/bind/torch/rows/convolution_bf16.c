/*
 * convolution_bf16.c - convolutions of operands rounded to bfloat16, by oneDNN.
 *
 * Any kernel, stride and padding in either layout; one group, no dilation, nothing
 * transposed. Bias, and what else follows in a chain, is added in float32.
 */
#include "bind/torch/rows/bf16.h"
#include "ops/bf16/cast.h"
#include "ops/conv/conv2d.h"

static bool has_convolution(void)
{
    return T.aoti_torch_cpu_convolution && T.aoti_torch_cpu_convolution_backward;
}

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_forward = call->op == PTAC_OP_CONV2D;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!has_convolution() || is_forward != (p->result == PTAC_CONV_FORWARD))
        return PTAC_ARGUMENT;
    if (p->groups != 1 || p->dilation_h != 1 || p->dilation_w != 1 ||
        call->inputs[0].n_dims != 4)
        return PTAC_SHAPE;
    return p->with_pool || p->act == PTAC_ACT_RELU6 ? PTAC_SHAPE : PTAC_TAKE;
}

typedef struct geometry {
    int64_t stride[2], padding[2], dilation[2], none[2];
} geometry;

static geometry geometry_of(const ptac_conv2d *p)
{
    return (geometry){
        .stride = {p->stride_h, p->stride_w},
        .padding = {p->pad_h, p->pad_w},
        .dilation = {1, 1},
    };
}

/* Ours has the strides of stock's, which the rounded copy has as well. */
static bool is_as_expected(at_tensor narrow, const ptac_view *wide, ptac_view *view)
{
    ptac_view_of(narrow, view);
    return view->dtype == PTAC_BF16 && ptac_view_is_alike(view, wide) &&
           ptac_view_is_dense(view);
}

static ptac_status forward(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const geometry geo = geometry_of(p);
    const ptac_bf16_epilogue epilogue = {
        .scale = call->n_inputs > 3 ? call->inputs[3].data : NULL,
        .shift = call->n_inputs > 2 ? call->inputs[2].data : NULL,
        .n_channels = p->out_channels,
        .n_planes = p->n * (p->channels_last ? p->out_h * p->out_w : p->out_channels),
        .size = p->channels_last ? 1 : (int64_t)p->out_h * p->out_w,
        .with_relu = p->act == PTAC_ACT_RELU,
        .channels_last = p->channels_last,
    };
    AT_OWNED at_tensor x = NULL, w = NULL, y = NULL;
    ptac_view view;

    if (ptac_bf16_alike(&call->inputs[0], &x) || ptac_bf16_alike(&call->inputs[1], &w))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_convolution(x, w, NULL, geo.stride, 2, geo.padding, 2,
                                     geo.dilation, 2, 0, geo.none, 2, 1, &y))
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
        p->in_channels,
        is_weight ? p->kernel_h : p->h,
        is_weight ? p->kernel_w : p->w,
    };

    return ptac_new_images(PTAC_BF16, sizes, p->channels_last, made, NULL);
}

static ptac_status backward(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    const geometry geo = geometry_of(p);
    const int64_t n_biases = p->out_channels, *biases = &n_biases;
    const int32_t mask[3] = {!is_weight, is_weight, call->n_outputs > 1};
    AT_OWNED at_tensor grad = NULL, x = NULL, w = NULL;
    AT_OWNED_ALL at_tensors grads = {{NULL}};
    ptac_view views[2];

    if (ptac_bf16_alike(&call->inputs[is_weight], &grad) ||
        (is_weight ? ptac_bf16_alike(&call->inputs[0], &x) : unread(p, false, &x)) ||
        (is_weight ? unread(p, true, &w) : ptac_bf16_alike(&call->inputs[1], &w)))
        return PTAC_NO_MEMORY;
    if (T.aoti_torch_cpu_convolution_backward(
            grad, x, w, mask[2] ? &biases : NULL, 1, geo.stride, 2, geo.padding, 2,
            geo.dilation, 2, 0, geo.none, 2, 1, mask, 3, &grads.at[0], &grads.at[1],
            &grads.at[2]))
        return PTAC_UNSUPPORTED;
    if (!is_as_expected(grads.at[is_weight], &call->outputs[0], &views[0]) ||
        (mask[2] && !is_as_expected(grads.at[2], &call->outputs[1], &views[1])))
        return PTAC_UNSUPPORTED;
    for (int i = 0; i < call->n_outputs; i++)
        ptac_bf16_widen(views[i].data, call->outputs[i].data, views[i].n_elements);
    return PTAC_OK;
}

PTAC_BF16_ROW(CONV2D, "bf16", accepts, forward)
PTAC_BF16_ROW(CONV2D_BACKWARD, "bf16", accepts, backward)
