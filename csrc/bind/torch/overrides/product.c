/*
 * product.c - aten::mm and aten::addmm, and of many matrices aten::bmm and
 * aten::baddbmm.
 */
#include "bind/torch/overrides/override.h"

#include "bind/torch/rows/bf16.h"
#include "bind/torch/rows/gemm.h"
#include "ops/product/product.h"

#include <math.h>

/* The inputs' product, of matrices which lie in memory as they lie. */
static ptac_reason read_matrices(const ptac_call *call, int n_dims,
                                 ptac_outputs *outputs)
{
    const ptac_view *a = &call->inputs[0], *b = &call->inputs[1];
    int64_t *sizes = outputs->own_sizes;

    if (a->n_dims != n_dims || b->n_dims != n_dims ||
        a->sizes[n_dims - 1] != b->sizes[n_dims - 2] ||
        (n_dims > 2 && a->sizes[0] != b->sizes[0]))
        return PTAC_ARGUMENT;
    if (a->dtype != PTAC_F32 || b->dtype != PTAC_F32)
        return PTAC_DTYPE;
    outputs->dense = 0;
    sizes[0] = a->sizes[0];
    sizes[1] = a->sizes[1];
    sizes[n_dims - 1] = b->sizes[n_dims - 1];
    ptac_outputs_are(outputs, n_dims, sizes);
    return PTAC_TAKE;
}

static ptac_reason read(const ptac_arguments *args, const ptac_call *call, void *params,
                        ptac_outputs *outputs)
{
    (void)args;
    (void)params;
    return read_matrices(call, 2, outputs);
}

static ptac_reason read_many(const ptac_arguments *args, const ptac_call *call,
                             void *params, ptac_outputs *outputs)
{
    (void)args;
    (void)params;
    return read_matrices(call, 3, outputs);
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

/* What is added broadcasts to the product, and its rows have no gaps. */
static ptac_reason read_added(const ptac_view *added, const int64_t sizes[3])
{
    const int last = added->n_dims - 1;

    if (last > 2 || last < 0)
        return PTAC_ARGUMENT;
    for (int i = 0; i <= last; i++)
        if (added->sizes[i] != 1 && added->sizes[i] != sizes[2 - last + i])
            return PTAC_ARGUMENT;
    if (added->dtype != PTAC_F32)
        return PTAC_DTYPE;
    return added->sizes[last] != sizes[2] || (added->strides[last] != 1 && sizes[2] > 1)
               ? PTAC_LAYOUT
               : PTAC_TAKE;
}

/* A number that float32 holds as well as stock's does, which is float32 too. */
static bool read_factor(const ptac_argument *from, float *factor)
{
    *factor = from->is_given ? (float)from->value : NAN;
    return isfinite(*factor);
}

static ptac_reason read_many_sums(const ptac_arguments *args, const ptac_call *call,
                                  void *params, ptac_outputs *outputs)
{
    ptac_product_factors *factors = params;
    ptac_reason why = read_matrices(call, 3, outputs);

    if (!why && (!read_factor(&args->at[3], &factors->beta) ||
                 !read_factor(&args->at[4], &factors->alpha) || factors->alpha == 0))
        why = PTAC_ARGUMENT;
    return why ? why : read_added(&call->inputs[2], outputs->own_sizes);
}

/*
 * As ptac_admit(), where the user has torch keep float32. A product that belongs to a
 * gradient rounds only where its forward call has.
 */
static const ptac_kernel *admit(ptac_call *call)
{
    const ptac_kernel *row = ptac_admit(call);
    ptac_reason why = PTAC_TAKE;

    if (row && row->in_bf16 && !ptac_bf16_may_follow())
        why = PTAC_FORWARD;
    else if (row && ptac_products_are_lowered())
        why = PTAC_PRECISION;
    if (!why)
        return row;
    ptac_refuse(call->op, why);
    return NULL;
}

/* Of the inputs' sizes alone; others than matrices are not small. */
static bool is_small(const ptac_arguments *args)
{
    at_tensor a = args->at[args->of->inputs[0]].tensor;
    at_tensor b = args->at[args->of->inputs[1]].tensor;
    int64_t n_dims = 0, others = 0, n_elements = 0, *sizes = NULL;

    T.aoti_torch_get_dim(a, &n_dims);
    T.aoti_torch_get_dim(b, &others);
    if (n_dims != others || n_dims < 2)
        return false;
    T.aoti_torch_get_numel(a, &n_elements);
    T.aoti_torch_get_sizes(b, &sizes);
    return n_elements < ptac_chooser_least_work(args->of->op) / (sizes[n_dims - 1] + 1);
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
    .is_small = is_small,
    .marks = true,
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
    .is_small = is_small,
    .marks = true,
};
PTAC_OVERRIDE(addmm, cpu_addmm, TENSOR(0), TENSOR(1), TENSOR(2), SCALAR(3), SCALAR(4))

static ptac_override bmm = {
    .schema = "bmm(Tensor self, Tensor mat2) -> Tensor",
    .op = PTAC_OP_BMM,
    .out = "aten::bmm.out",
    .n_inputs = 2,
    .inputs = {0, 1},
    .read = read_many,
    .needs = &T.float32_precision,
    .admit = admit,
    .is_small = is_small,
    .marks = true,
};
PTAC_OVERRIDE(bmm, cpu_bmm, TENSOR(0), TENSOR(1))

static ptac_override baddbmm = {
    .schema = "baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, "
              "Scalar alpha=1) -> Tensor",
    .op = PTAC_OP_BADDBMM,
    .n_inputs = 3,
    .inputs = {1, 2, 0},
    .read = read_many_sums,
    .needs = &T.float32_precision,
    .admit = admit,
    .is_small = is_small,
    .marks = true,
};
PTAC_OVERRIDE(baddbmm, cpu_baddbmm, TENSOR(0), TENSOR(1), TENSOR(2), SCALAR(3),
              SCALAR(4))
