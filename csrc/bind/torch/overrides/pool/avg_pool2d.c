/*
 * avg_pool2d.c - aten::avg_pool2d and its backward.
 */
#include "bind/torch/overrides/pool/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_argument *options = ptac_options(args), *divisor = &options[5];
    ptac_avg_pool2d *p = params;

    if (divisor->is_given && divisor->number == 0)
        return PTAC_ARGUMENT;
    p->divisor = divisor->is_given ? divisor->number : 0;
    p->count_include_pad = options[4].truth;
    p->is_adaptive = false;
    p->is_regular = true;
    return ptac_pool_read(args, call, false, &p->window, &p->image, outputs);
}

static ptac_override avg_pool2d = {
    .schema = "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], "
              "int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
              "int? divisor_override=None) -> Tensor",
    .op = PTAC_OP_AVG_POOL2D,
    .out = "aten::avg_pool2d.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(avg_pool2d, cpu_avg_pool2d, TENSOR(0), INTS(1), INTS(2), INTS(3), BOOL(4),
              BOOL(5), OPTIONAL_INT(6))
PTAC_OVERRIDE_ON_CUDA(avg_pool2d, cuda_avg_pool2d, TENSOR(0), INTS(1), INTS(2), INTS(3),
                      BOOL(4), BOOL(5), OPTIONAL_INT(6))

static ptac_override avg_pool2d_backward = {
    .schema = "avg_pool2d_backward(Tensor grad_output, Tensor self, "
              "int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, "
              "bool count_include_pad, int? divisor_override) -> Tensor",
    .op = PTAC_OP_AVG_POOL2D_BACKWARD,
    .out = "aten::avg_pool2d_backward.grad_input",
    .self = 1,
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(avg_pool2d_backward, cpu_avg_pool2d_backward, TENSOR(0), TENSOR(1),
              INTS(2), INTS(3), INTS(4), BOOL(5), BOOL(6), OPTIONAL_INT(7))
PTAC_OVERRIDE_ON_CUDA(avg_pool2d_backward, cuda_avg_pool2d_backward, TENSOR(0),
                      TENSOR(1), INTS(2), INTS(3), INTS(4), BOOL(5), BOOL(6),
                      OPTIONAL_INT(7))
