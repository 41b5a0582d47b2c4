/*
 * avg_pool2d.c - aten::avg_pool2d and its backward.
 */
#include "bind/torch/overrides/pool.h"
#include "ops/pool/avg/avg_pool2d.h"

static at_result forward(const ptac_arguments *args)
{
    return T.cpu_avg_pool2d(ptac_tensor(args, 0), ptac_ints(args, 1),
                            ptac_ints(args, 2), ptac_ints(args, 3), args->at[4].truth,
                            args->at[5].truth, ptac_optional_int(args, 6));
}

/* The arguments from first on follow the tensors. */
static ptac_reason read_params(const ptac_arguments *args, int first,
                               const ptac_view *x, ptac_avg_pool2d *p)
{
    const ptac_argument *divisor = &args->at[first + 5];

    if (divisor->is_given && divisor->number == 0)
        return PTAC_ARGUMENT;
    p->divisor = divisor->is_given ? divisor->number : 0;
    p->count_include_pad = args->at[first + 4].truth;
    p->is_adaptive = false;
    p->is_regular = true;
    return ptac_read_window(args, first, false, x, &p->window, &p->image);
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_output *output)
{
    ptac_avg_pool2d *p = params;
    const ptac_reason why = read_params(args, 1, &call->inputs[0], p);

    return why ? why : ptac_pooled(&call->inputs[0], &p->image, output);
}

static ptac_override avg_pool2d = {
    .schema = "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], "
              "int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
              "int? divisor_override=None) -> Tensor",
    .op = PTAC_OP_AVG_POOL2D,
    .kernel = forward,
    .symbol = &T.cpu_avg_pool2d,
    .out = "aten::avg_pool2d.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(avg_pool2d)

static at_result backward(const ptac_arguments *args)
{
    return T.cpu_avg_pool2d_backward(ptac_tensor(args, 0), ptac_tensor(args, 1),
                                     ptac_ints(args, 2), ptac_ints(args, 3),
                                     ptac_ints(args, 4), args->at[5].truth,
                                     args->at[6].truth, ptac_optional_int(args, 7));
}

static ptac_reason read_backward(const ptac_arguments *args, const ptac_call *call,
                                 void *params, ptac_output *output)
{
    ptac_avg_pool2d *p = params;
    const ptac_view *x = &args->at[1].view;
    const ptac_reason why = read_params(args, 2, x, p);

    return why ? why : ptac_pool_gradient(call, x, &p->image, output);
}

static ptac_override avg_pool2d_backward = {
    .schema = "avg_pool2d_backward(Tensor grad_output, Tensor self, "
              "int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, "
              "bool count_include_pad, int? divisor_override) -> Tensor",
    .op = PTAC_OP_AVG_POOL2D_BACKWARD,
    .kernel = backward,
    .symbol = &T.cpu_avg_pool2d_backward,
    .out = "aten::avg_pool2d_backward.grad_input",
    .dtype_from = 1,
    .n_inputs = 1,
    .read = read_backward,
};
PTAC_OVERRIDE(avg_pool2d_backward)
