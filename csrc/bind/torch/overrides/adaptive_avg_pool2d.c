/*
 * adaptive_avg_pool2d.c - aten::_adaptive_avg_pool2d and its backward.
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

static at_result forward(const ptac_arguments *args)
{
    return T.cpu_adaptive_avg_pool2d(ptac_tensor(args, 0), ptac_ints(args, 1));
}

static ptac_reason read_params(const ptac_view *x, int64_t out_h, int64_t out_w,
                               ptac_avg_pool2d *p)
{
    const ptac_reason why = ptac_image_of(x, &p->image);

    if (why)
        return why;
    if (out_h < 1 || out_w < 1 || out_h >= INT32_MAX || out_w >= INT32_MAX)
        return PTAC_ARGUMENT;
    p->image.out_h = out_h;
    p->image.out_w = out_w;
    ptac_avg_pool2d_adapt(p);
    return PTAC_TAKE;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    const ptac_dims *size = &args->at[1].ints;
    ptac_avg_pool2d *p = params;
    ptac_reason why = PTAC_ARGUMENT;

    if (ptac_dims_is_pair(size))
        why = read_params(&call->inputs[0], size->values[0], size->values[1], p);
    return why ? why : ptac_pooled(&call->inputs[0], &p->image, output);
}

static ptac_override adaptive_avg_pool2d = {
    .schema = "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D,
    .kernel = forward,
    .symbol = &T.cpu_adaptive_avg_pool2d,
    /* Not _adaptive_avg_pool2d.out, which calls _adaptive_avg_pool2d. */
    .out = "aten::adaptive_avg_pool2d.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(adaptive_avg_pool2d)

static at_result backward(const ptac_arguments *args)
{
    return T.cpu_adaptive_avg_pool2d_backward(ptac_tensor(args, 0),
                                              ptac_tensor(args, 1));
}

/* ATen divides by the gradient's layout, and gives the result x's. */
static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_output *output)
{
    ptac_avg_pool2d *p = params;
    const ptac_view *grad = &call->inputs[0], *x = &args->at[1].view;
    ptac_reason why;

    if (grad->n_dims < 2)
        return PTAC_SHAPE;
    if (ptac_view_suggests_channels_last(grad) != ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    why =
        read_params(x, grad->sizes[grad->n_dims - 2], grad->sizes[grad->n_dims - 1], p);
    return why ? why : ptac_pool_gradient(call, x, &p->image, output);
}

static ptac_override adaptive_avg_pool2d_backward = {
    .schema = "_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) "
              "-> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD,
    .kernel = backward,
    /* No overload leads to this kernel: even out= calls this operator. */
    .symbol = &T.cpu_adaptive_avg_pool2d_backward,
    .n_inputs = 1,
    .read = read_backward,
};
PTAC_OVERRIDE(adaptive_avg_pool2d_backward)
