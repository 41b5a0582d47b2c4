/*
 * softmax.c - aten::_log_softmax and aten::_softmax, on CUDA over the last dimension,
 * and their gradients.
 */
#include "bind/torch/overrides/override.h"

#include "ops/softmax/softmax.h"

static ptac_reason read_dimension(const ptac_view *x, int64_t dim, ptac_softmax *p)
{
    if (dim < -x->n_dims || dim >= x->n_dims)
        return PTAC_ARGUMENT;
    dim += dim < 0 ? x->n_dims : 0;
    p->width = x->sizes[dim];
    p->inner = 1;
    for (int i = (int)dim + 1; i < x->n_dims; i++)
        p->inner *= x->sizes[i];
    return PTAC_TAKE;
}

/* Outputs are contiguous, as stock makes them. Backward gets the output as self. */
static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *x = &call->inputs[0], *self = &args->at[args->of->self].view;
    const ptac_argument *options = ptac_options(args);
    const bool is_backward = args->of->self != 0;

    if (x->n_dims == 0 || x->n_dims > PTAC_MAX_DIMS)
        return PTAC_SHAPE;
    if (x->dtype == PTAC_OTHER_DTYPE ||
        (is_backward &&
         (self->dtype != x->dtype || options[1].number != ptac_torch_dtype(x->dtype))))
        return PTAC_DTYPE;
    if (is_backward ? !ptac_view_has_sizes(self, x->n_dims, x->sizes)
                    : options[1].truth)
        return PTAC_ARGUMENT;
    ptac_outputs_are(outputs, x->n_dims, x->sizes);
    return read_dimension(x, options[0].number, params);
}

static ptac_override log_softmax = {
    .schema = "_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    .op = PTAC_OP_LOG_SOFTMAX,
    .out = "aten::_log_softmax.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(log_softmax, cpu_log_softmax, TENSOR(0), INT(1), BOOL(2))
PTAC_OVERRIDE_ON_CUDA(log_softmax, cuda_log_softmax, TENSOR(0), INT(1), BOOL(2))

static ptac_override log_softmax_backward = {
    .schema = "_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
              "ScalarType input_dtype) -> Tensor",
    .op = PTAC_OP_LOG_SOFTMAX_BACKWARD,
    .out = "aten::_log_softmax_backward_data.out",
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read,
};
PTAC_OVERRIDE(log_softmax_backward, cpu_log_softmax_backward, TENSOR(0), TENSOR(1),
              INT(2), DTYPE(3))
PTAC_OVERRIDE_ON_CUDA(log_softmax_backward, cuda_log_softmax_backward, TENSOR(0),
                      TENSOR(1), INT(2), DTYPE(3))

static ptac_override softmax = {
    .schema = "_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    .op = PTAC_OP_SOFTMAX,
    .out = "aten::_softmax.out",
    .n_inputs = 1,
    .read = read,
};
PTAC_OVERRIDE(softmax, cpu_softmax, TENSOR(0), INT(1), BOOL(2))
PTAC_OVERRIDE_ON_CUDA(softmax, cuda_softmax, TENSOR(0), INT(1), BOOL(2))

static ptac_override softmax_backward = {
    .schema = "_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
              "ScalarType input_dtype) -> Tensor",
    .op = PTAC_OP_SOFTMAX_BACKWARD,
    .out = "aten::_softmax_backward_data.out",
    .self = 1,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read,
};
PTAC_OVERRIDE(softmax_backward, cpu_softmax_backward, TENSOR(0), TENSOR(1), INT(2),
              DTYPE(3))
PTAC_OVERRIDE_ON_CUDA(softmax_backward, cuda_softmax_backward, TENSOR(0), TENSOR(1),
                      INT(2), DTYPE(3))
