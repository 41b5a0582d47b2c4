/*
 * avg_pool3d.c - aten::avg_pool3d, aten::_adaptive_avg_pool3d and their backwards.
 *
 * ATen's results are contiguous whatever the layout of the volume.
 */
#include "bind/torch/overrides/pool/pool.h"
#include "bind/torch/overrides/pool/volume_pool.h"
#include "ops/pool/volume/avg_pool3d.h"

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_argument *options = ptac_options(args), *divisor = &options[5];
    ptac_avg_pool3d *p = params;
    const ptac_reason why = ptac_volume_pool_read(args, call, false, &p->slab.window,
                                                  &p->slab.image, &p->depth, outputs);

    if (why)
        return why;
    /* Torch has an error for windows larger than the volume, padding or not. */
    if ((divisor->is_given && divisor->number == 0) ||
        p->depth.window.kernel > p->depth.size ||
        p->slab.window.h.kernel > p->slab.image.h ||
        p->slab.window.w.kernel > p->slab.image.w)
        return PTAC_ARGUMENT;
    p->slab.divisor = divisor->is_given ? divisor->number : 0;
    p->slab.count_include_pad = options[4].truth;
    p->slab.is_adaptive = false;
    p->slab.is_regular = true;
    p->slab.image.channels_last = outputs->channels_last = false;
    return PTAC_TAKE;
}

static ptac_override avg_pool3d = {
    .schema = "avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], "
              "int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
              "int? divisor_override=None) -> Tensor",
    .op = PTAC_OP_AVG_POOL3D,
    .out = "aten::avg_pool3d.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(avg_pool3d, cpu_avg_pool3d, TENSOR(0), INTS(1), INTS(2), INTS(3), BOOL(4),
              BOOL(5), OPTIONAL_INT(6))

static ptac_override avg_pool3d_backward = {
    .schema = "avg_pool3d_backward(Tensor grad_output, Tensor self, "
              "int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, "
              "bool count_include_pad, int? divisor_override) -> Tensor",
    .op = PTAC_OP_AVG_POOL3D_BACKWARD,
    .out = "aten::avg_pool3d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(avg_pool3d_backward, cpu_avg_pool3d_backward, TENSOR(0), TENSOR(1),
              INTS(2), INTS(3), INTS(4), BOOL(5), BOOL(6), OPTIONAL_INT(7))

/* Sizes come from the gradient, where there is one. */
static ptac_reason read_adaptive(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_outputs *outputs)
{
    const ptac_view *x = &args->at[args->of->self].view, *grad = &call->inputs[0];
    const int64_t *size = args->at[1].ints.values;
    ptac_avg_pool3d *p = params;
    ptac_image *slab = &p->slab.image;
    ptac_reason why;

    if (args->of->self != 0) {
        if (grad->n_dims < 3)
            return PTAC_SHAPE;
        size = grad->sizes + grad->n_dims - 3;
    } else if (args->at[1].ints.n != 3) {
        return PTAC_ARGUMENT;
    }
    why = ptac_volume_of(x, slab, &p->depth);
    if (why)
        return why;
    if (slab->channels_last) /* which ATen reads as it is, and we would copy */
        return PTAC_LAYOUT;
    for (int i = 0; i < 3; i++)
        if (size[i] < 1 || size[i] >= INT32_MAX)
            return PTAC_ARGUMENT;
    p->depth.outputs = size[0];
    slab->out_h = size[1];
    slab->out_w = size[2];
    ptac_avg_pool3d_adapt(p);
    return ptac_pool_output_of(args, call, slab, p->depth.outputs, outputs);
}

static ptac_override adaptive_avg_pool3d = {
    .schema = "_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL3D,
    .out = "aten::adaptive_avg_pool3d.out",
    .n_inputs = 1,
    .read = read_adaptive,
};
PTAC_OVERRIDE(adaptive_avg_pool3d, cpu_adaptive_avg_pool3d, TENSOR(0), INTS(1))

static ptac_override adaptive_avg_pool3d_backward = {
    .schema = "_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) "
              "-> Tensor",
    .op = PTAC_OP_ADAPTIVE_AVG_POOL3D_BACKWARD,
    .self = 1,
    .n_inputs = 1,
    .read = read_adaptive,
};
PTAC_OVERRIDE(adaptive_avg_pool3d_backward, cpu_adaptive_avg_pool3d_backward, TENSOR(0),
              TENSOR(1))
