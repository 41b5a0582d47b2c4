/*
 * loss.c - aten's losses of each element, which may be added up, and their gradients.
 */
#include "bind/torch/overrides/alike.h"

#include "ops/loss/losses.h"

/* The option reduction, or why it is none. */
static ptac_reason read_reduction(int64_t number, ptac_loss *p)
{
    if (number < PTAC_LOSS_EACH || number > PTAC_LOSS_SUM)
        return PTAC_ARGUMENT;
    p->reduction = (ptac_reduction)number;
    return PTAC_TAKE;
}

/* Losses are laid out as x is; sums are scalars, and need no order of x. */
static ptac_reason read_loss(const ptac_call *call, int64_t reduction, ptac_loss *p,
                             ptac_outputs *outputs)
{
    const ptac_reason why = read_reduction(reduction, p);

    if (why)
        return why;
    if (p->reduction == PTAC_LOSS_EACH)
        return ptac_outputs_alike(call, PTAC_LOSS_X, PTAC_LOSS_TARGET + 1, outputs);
    outputs->dense = 0;
    ptac_outputs_are(outputs, 0, outputs->own_sizes);
    if (!ptac_view_is_dense(&call->inputs[PTAC_LOSS_X]))
        return PTAC_LAYOUT;
    return ptac_inputs_alike(call, PTAC_LOSS_X, PTAC_LOSS_TARGET + 1);
}

/* Of a mean or a sum grad is one number. */
static ptac_reason read_gradient(const ptac_call *call, int64_t reduction, ptac_loss *p,
                                 ptac_outputs *outputs)
{
    const ptac_view *grad = &call->inputs[PTAC_LOSS_GRAD];
    const bool is_one = grad->n_elements == 1;
    const ptac_reason why = read_reduction(reduction, p);

    if (why)
        return why;
    if (grad->dtype != call->inputs[PTAC_LOSS_GRAD_X].dtype)
        return PTAC_DTYPE;
    if (is_one && grad->n_dims > call->inputs[PTAC_LOSS_GRAD_X].n_dims)
        return PTAC_SHAPE;
    outputs->dense = 1 << PTAC_LOSS_GRAD_X | 1 << PTAC_LOSS_GRAD_TARGET;
    return ptac_outputs_alike(call, is_one ? PTAC_LOSS_GRAD_X : PTAC_LOSS_GRAD,
                              PTAC_LOSS_GRAD_TARGET + 1, outputs);
}

/* Where stock starts from contiguous zeros. */
static ptac_reason read_contiguous(const ptac_call *call, int64_t reduction,
                                   ptac_loss *p, ptac_outputs *outputs)
{
    const ptac_reason why = read_gradient(call, reduction, p, outputs);

    return why || !outputs->channels_last ? why : PTAC_LAYOUT;
}

static ptac_reason read_mse(const ptac_arguments *args, const ptac_call *call,
                            void *params, ptac_outputs *outputs)
{
    return read_loss(call, args->at[2].number, params, outputs);
}

static ptac_reason read_mse_backward(const ptac_arguments *args, const ptac_call *call,
                                     void *params, ptac_outputs *outputs)
{
    return read_contiguous(call, args->at[3].number, params, outputs);
}

static ptac_reason read_beta(const ptac_argument *beta, ptac_loss *p)
{
    p->beta = beta->real;
    return p->beta >= PTAC_LEAST_BETA && p->beta <= PTAC_MOST_BETA ? PTAC_TAKE
                                                                   : PTAC_ARGUMENT;
}

static ptac_reason read_smooth_l1(const ptac_arguments *args, const ptac_call *call,
                                  void *params, ptac_outputs *outputs)
{
    const ptac_reason why = read_beta(&args->at[3], params);

    return why ? why : read_loss(call, args->at[2].number, params, outputs);
}

static ptac_reason read_smooth_l1_backward(const ptac_arguments *args,
                                           const ptac_call *call, void *params,
                                           ptac_outputs *outputs)
{
    const ptac_reason why = read_beta(&args->at[4], params);

    return why ? why : read_contiguous(call, args->at[3].number, params, outputs);
}

static ptac_reason read_bce(const ptac_arguments *args, const ptac_call *call,
                            void *params, ptac_outputs *outputs)
{
    if (args->at[2].is_given)
        return PTAC_ARGUMENT;
    return read_loss(call, args->at[3].number, params, outputs);
}

static ptac_reason read_bce_backward(const ptac_arguments *args, const ptac_call *call,
                                     void *params, ptac_outputs *outputs)
{
    if (args->at[3].is_given)
        return PTAC_ARGUMENT;
    return read_gradient(call, args->at[4].number, params, outputs);
}

static ptac_reason read_logits(const ptac_arguments *args, const ptac_call *call,
                               void *params, ptac_outputs *outputs)
{
    if (args->at[2].is_given || args->at[3].is_given)
        return PTAC_ARGUMENT;
    return read_loss(call, args->at[4].number, params, outputs);
}

static ptac_override mse = {
    .schema = "mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor",
    .op = PTAC_OP_MSE_LOSS,
    .out = "aten::mse_loss.out",
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_mse,
};
PTAC_OVERRIDE(mse, cpu_mse_loss, TENSOR(0), TENSOR(1), INT(2))

static ptac_override mse_backward = {
    .schema = "mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, "
              "int reduction) -> Tensor",
    .op = PTAC_OP_MSE_LOSS_BACKWARD,
    .self = 1,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read_mse_backward,
};
PTAC_OVERRIDE(mse_backward, cpu_mse_loss_backward, TENSOR(0), TENSOR(1), TENSOR(2),
              INT(3))

static ptac_override smooth_l1 = {
    .schema = "smooth_l1_loss(Tensor self, Tensor target, int reduction=1, "
              "float beta=1.0) -> Tensor",
    .op = PTAC_OP_SMOOTH_L1_LOSS,
    .out = "aten::smooth_l1_loss.out",
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_smooth_l1,
};
PTAC_OVERRIDE(smooth_l1, cpu_smooth_l1_loss, TENSOR(0), TENSOR(1), INT(2), REAL(3))

static ptac_override smooth_l1_backward = {
    .schema = "smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, "
              "int reduction, float beta) -> Tensor",
    .op = PTAC_OP_SMOOTH_L1_LOSS_BACKWARD,
    .self = 1,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read_smooth_l1_backward,
};
PTAC_OVERRIDE(smooth_l1_backward, smooth_l1_loss_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), INT(3), REAL(4))

static ptac_override bce = {
    .schema = "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, "
              "int reduction=1) -> Tensor",
    .op = PTAC_OP_BINARY_CROSS_ENTROPY,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_bce,
};
PTAC_OVERRIDE(bce, cpu_binary_cross_entropy, TENSOR(0), TENSOR(1), OPTIONAL_TENSOR(2),
              INT(3))

static ptac_override bce_backward = {
    .schema = "binary_cross_entropy_backward(Tensor grad_output, Tensor self, "
              "Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
    .op = PTAC_OP_BINARY_CROSS_ENTROPY_BACKWARD,
    .self = 1,
    .n_inputs = 3,
    .inputs = {0, 1, 2},
    .read = read_bce_backward,
};
PTAC_OVERRIDE(bce_backward, cpu_binary_cross_entropy_backward, TENSOR(0), TENSOR(1),
              TENSOR(2), OPTIONAL_TENSOR(3), INT(4))

static ptac_override logits = {
    .schema =
        "binary_cross_entropy_with_logits(Tensor self, Tensor target, "
        "Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor",
    .op = PTAC_OP_BINARY_CROSS_ENTROPY_WITH_LOGITS,
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_logits,
};
PTAC_OVERRIDE(logits, binary_cross_entropy_with_logits, TENSOR(0), TENSOR(1),
              OPTIONAL_TENSOR(2), OPTIONAL_TENSOR(3), INT(4))
