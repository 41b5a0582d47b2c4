/*
 * product.c - aten::mm and aten::addmm.
 */
#include "bind/torch/overrides/override.h"

#include "bind/torch/rows/gemm.h"
#include "ops/product/product.h"

/* The inputs' product, of matrices which lie in memory as they lie. */
static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];

    (void)args;
    (void)params;
    if (a->n_dims != 2 || b->n_dims != 2 || a->sizes[1] != b->sizes[0])
        return PTAC_ARGUMENT;
    if (a->dtype != PTAC_F32 || b->dtype != PTAC_F32)
        return PTAC_DTYPE;
    outputs->dense = 0;
    outputs->own_sizes[0] = a->sizes[0];
    outputs->own_sizes[1] = b->sizes[1];
    ptac_outputs_are(outputs, 2, outputs->own_sizes);
    return PTAC_TAKE;
}

/* A layer's: self is its bias. */
static ptac_reason read_sum(const ptac_arguments *args, const ptac_call *call,
                            void *params, ptac_outputs *outputs)
{
    const ptac_view *b = &call->inputs[1], *bias = &call->inputs[2];
    const ptac_argument *beta = &args->at[3], *alpha = &args->at[4];

    if (!beta->is_given || beta->value != 1 || !alpha->is_given || alpha->value != 1 ||
        b->n_dims != 2 || bias->n_dims != 1 || bias->sizes[0] != b->sizes[1])
        return PTAC_ARGUMENT;
    if (bias->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (!ptac_view_is_contiguous(bias))
        return PTAC_LAYOUT;
    return read(args, call, params, outputs);
}

/* As ptac_admit(), where the user has torch keep float32. */
static const ptac_kernel *admit(ptac_call *call)
{
    const ptac_kernel *row = ptac_admit(call);

    if (!row || !ptac_products_are_lowered())
        return row;
    ptac_refuse(call->op, PTAC_PRECISION);
    return NULL;
}

static ptac_override mm = {
    .schema = "mm(Tensor self, Tensor mat2) -> Tensor",
    .op = PTAC_OP_MM,
    .out = "aten::mm.out",
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read,
    .needs = &T.float32_precision,
    .admit = admit,
};
PTAC_OVERRIDE(mm, cpu_mm, TENSOR(0), TENSOR(1))

static ptac_override addmm = {
    .schema = "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, "
              "Scalar alpha=1) -> Tensor",
    .op = PTAC_OP_ADDMM,
    .n_inputs = 3,
    .inputs = {1, 2, 0},
    .read = read_sum,
    .needs = &T.float32_precision,
    .admit = admit,
};
PTAC_OVERRIDE(addmm, cpu_addmm, TENSOR(0), TENSOR(1), TENSOR(2), SCALAR(3), SCALAR(4))
