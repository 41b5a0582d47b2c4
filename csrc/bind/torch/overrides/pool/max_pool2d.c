/*
 * max_pool2d.c - aten::max_pool2d_with_indices and its backward.
 */
#include "bind/torch/overrides/pool/pool.h"
#include "ops/pool/max/max_pool2d.h"

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    ptac_max_pool2d *p = params;

    return ptac_pool_read(args, call, true, &p->window, &p->image, outputs);
}

static ptac_override max_pool2d = {
    .schema = "max_pool2d_with_indices(Tensor self, int[2] kernel_size, "
              "int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
              "bool ceil_mode=False) -> (Tensor, Tensor)",
    .op = PTAC_OP_MAX_POOL2D,
    .out = "aten::max_pool2d_with_indices.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(max_pool2d, cpu_max_pool2d_with_indices, TENSOR(0), INTS(1), INTS(2),
              INTS(3), INTS(4), BOOL(5))
PTAC_OVERRIDE_ON_CUDA(max_pool2d, cuda_max_pool2d_with_indices, TENSOR(0), INTS(1),
                      INTS(2), INTS(3), INTS(4), BOOL(5))

static ptac_override max_pool2d_backward = {
    .schema = "max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, "
              "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, "
              "bool ceil_mode, Tensor indices) -> Tensor",
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .out = "aten::max_pool2d_with_indices_backward.grad_input",
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 7},
    .read = read,
};
PTAC_OVERRIDE(max_pool2d_backward, cpu_max_pool2d_with_indices_backward, TENSOR(0),
              TENSOR(1), INTS(2), INTS(3), INTS(4), INTS(5), BOOL(6), TENSOR(7))
PTAC_OVERRIDE_ON_CUDA(max_pool2d_backward, cuda_max_pool2d_with_indices_backward,
                      TENSOR(0), TENSOR(1), INTS(2), INTS(3), INTS(4), INTS(5), BOOL(6),
                      TENSOR(7))
