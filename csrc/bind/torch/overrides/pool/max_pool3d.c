/*
 * max_pool3d.c - aten::max_pool3d_with_indices and its backward.
 */
#include "bind/torch/overrides/pool/volume_pool.h"
#include "ops/pool/volume/max_pool3d.h"

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *given = &call->inputs[0];
    ptac_max_pool3d *p = params;

    /* The gradient of a volume without a batch lies as stock's reading of grad says. */
    if (args->of->self != 0 && given->n_dims == 4 && !ptac_view_is_contiguous(given))
        return PTAC_LAYOUT;
    return ptac_volume_pool_read(args, call, true, &p->slab.window, &p->slab.image,
                                 &p->depth, outputs);
}

static ptac_override max_pool3d = {
    .schema = "max_pool3d_with_indices(Tensor self, int[3] kernel_size, "
              "int[3] stride=[], int[3] padding=0, int[3] dilation=1, "
              "bool ceil_mode=False) -> (Tensor, Tensor)",
    .op = PTAC_OP_MAX_POOL3D,
    .out = "aten::max_pool3d_with_indices.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(max_pool3d, cpu_max_pool3d_with_indices, TENSOR(0), INTS(1), INTS(2),
              INTS(3), INTS(4), BOOL(5))

static ptac_override max_pool3d_backward = {
    .schema = "max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, "
              "int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, "
              "bool ceil_mode, Tensor indices) -> Tensor",
    .op = PTAC_OP_MAX_POOL3D_BACKWARD,
    .out = "aten::max_pool3d_with_indices_backward.grad_input",
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 7},
    .read = read,
};
PTAC_OVERRIDE(max_pool3d_backward, cpu_max_pool3d_with_indices_backward, TENSOR(0),
              TENSOR(1), INTS(2), INTS(3), INTS(4), INTS(5), BOOL(6), TENSOR(7))
