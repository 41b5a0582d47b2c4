/*
 * adaptive_avg_pool2d.c - aten::_adaptive_avg_pool2d and its backward.
 */
#include "bind/torch/overrides/pool/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

/*
 * ATen takes sizes from the gradient, and on the CPU divides by its layout; the result
 * has x's.
 */
static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *x = &args->at[args->of->self].view, *grad = &call->inputs[0];
    const int64_t *size = args->at[1].ints.values;
    ptac_avg_pool2d *p = params;
    ptac_reason why;

    if (args->of->self != 0) {
        if (grad->n_dims < 2)
            return PTAC_SHAPE;
        if (call->on == PTAC_ON_CPU && ptac_view_suggests_channels_last(grad) !=
                                           ptac_view_suggests_channels_last(x))
            return PTAC_LAYOUT;
        size = grad->sizes + grad->n_dims - 2;
    } else if (!ptac_dims_is_pair(&args->at[1].ints)) {
        return PTAC_ARGUMENT;
    }
    why = ptac_image_of(x, &p->image);
    if (why)
        return why;
    if (size[0] < 1 || size[1] < 1 || size[0] >= INT32_MAX || size[1] >= INT32_MAX)
        return PTAC_ARGUMENT;
    p->image.out_h = size[0];
    p->image.out_w = size[1];
    ptac_avg_pool2d_adapt(p);
    return ptac_pool_output(args, call, &p->image, outputs);
}

static ptac_override adaptive_avg_pool2d = {
    .schema = "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D,
    /* Not _adaptive_avg_pool2d.out, which calls _adaptive_avg_pool2d. */
    .out = "aten::adaptive_avg_pool2d.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(adaptive_avg_pool2d, cpu_adaptive_avg_pool2d, TENSOR(0), INTS(1))
PTAC_OVERRIDE_ON_CUDA(adaptive_avg_pool2d, cuda_adaptive_avg_pool2d, TENSOR(0), INTS(1))

static ptac_override adaptive_avg_pool2d_backward = {
    .schema = "_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) "
              "-> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL2D_BACKWARD,
    /* No overload leads to this kernel: even out= calls this operator. */
    .self = 1,
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(adaptive_avg_pool2d_backward, cpu_adaptive_avg_pool2d_backward, TENSOR(0),
              TENSOR(1))
PTAC_OVERRIDE_ON_CUDA(adaptive_avg_pool2d_backward, cuda_adaptive_avg_pool2d_backward,
                      TENSOR(0), TENSOR(1))
