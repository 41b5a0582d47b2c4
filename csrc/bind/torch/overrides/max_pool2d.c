/*
 * max_pool2d.c - aten::max_pool2d_with_indices and its backward.
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/max/max_pool2d.h"

static at_result forward(const ptac_arguments *args)
{
    return T.cpu_max_pool2d_with_indices(ptac_tensor(args, 0), ptac_ints(args, 1),
                                         ptac_ints(args, 2), ptac_ints(args, 3),
                                         ptac_ints(args, 4), args->at[5].truth);
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    ptac_max_pool2d *p = params;
    const ptac_view *x = &call->inputs[0];
    const ptac_reason why = ptac_read_window(args, 1, true, x, &p->window, &p->image);

    return why ? why : ptac_pooled(x, &p->image, output);
}

static ptac_override max_pool2d = {
    .schema = "max_pool2d_with_indices(Tensor self, int[2] kernel_size, "
              "int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
              "bool ceil_mode=False) -> (Tensor, Tensor)",
    .op = PTAC_OP_MAX_POOL2D,
    .kernel = forward,
    .symbol = &T.cpu_max_pool2d_with_indices,
    .out = "aten::max_pool2d_with_indices.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(max_pool2d)

static at_result backward(const ptac_arguments *args)
{
    return T.cpu_max_pool2d_with_indices_backward(
        ptac_tensor(args, 0), ptac_tensor(args, 1), ptac_ints(args, 2),
        ptac_ints(args, 3), ptac_ints(args, 4), ptac_ints(args, 5), args->at[6].truth,
        ptac_tensor(args, 7));
}

static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_output *output)
{
    ptac_max_pool2d *p = params;
    const ptac_view *x = &args->at[1].view;
    const ptac_reason why = ptac_read_window(args, 2, true, x, &p->window, &p->image);

    return why ? why : ptac_pool_gradient(call, x, &p->image, output);
}

static ptac_override max_pool2d_backward = {
    .schema = "max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, "
              "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, "
              "bool ceil_mode, Tensor indices) -> Tensor",
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .kernel = backward,
    .symbol = &T.cpu_max_pool2d_with_indices_backward,
    .out = "aten::max_pool2d_with_indices_backward.grad_input",
    .dtype_from = 1,
    .n_inputs = 2,
    .inputs = {0, 7},
    .read = read_backward,
};
PTAC_OVERRIDE(max_pool2d_backward)
