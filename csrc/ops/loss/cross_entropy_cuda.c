/*
 * cross_entropy_cuda.c - launches of cross_entropy.cu and cross_entropy_backward.cu.
 */
#include "ops/loss/cross_entropy_cuda.h"

#include "device/cuda/launch.h"
#include "ops/loss/cross_entropy.h"
#include "ops/softmax/softmax_cuda.h"

enum {
    ROWS_A_BLOCK = PTAC_SOFTMAX_THREADS / 32, /* of short rows: one a warp */
    MOST_SUMMED_AT_ONCE = 1 << 14,            /* losses, by one block */
};

PTAC_CUDA_UNIT(cross_entropy)
PTAC_CUDA_UNIT(cross_entropy_backward)

#define KERNELS(prefix)  PTAC_CUDA_KERNELS(cross_entropy, prefix)
#define BACKWARD(prefix) PTAC_CUDA_KERNELS(cross_entropy_backward, prefix)

/* By whether there are factors of all classes, and whether rows are long. */
static ptac_cuda_kernel forward[2][2][PTAC_N_DTYPES] = {
    {KERNELS("cross_entropy_short"), KERNELS("cross_entropy_long")},
    {KERNELS("cross_entropy_soft_short"), KERNELS("cross_entropy_soft_long")},
};
static ptac_cuda_kernel backward[2][2][PTAC_N_DTYPES] = {
    {BACKWARD("cross_entropy_backward_short"), BACKWARD("cross_entropy_backward_long")},
    {BACKWARD("cross_entropy_backward_soft_short"),
     BACKWARD("cross_entropy_backward_soft_long")},
};
static ptac_cuda_kernel reduce[] = KERNELS("cross_entropy_reduce");
static ptac_cuda_kernel parts = {&unit_cross_entropy, "cross_entropy_parts", NULL};

static int operand(const ptac_view *view, ptac_dtype logits)
{
    if (!view->data)
        return PTAC_OPERAND_NONE;
    if (view->dtype == PTAC_I64)
        return PTAC_OPERAND_INDICES;
    return view->dtype == logits ? PTAC_OPERAND_ALIKE : PTAC_OPERAND_FLOAT;
}

static bool is_readable(const ptac_view *view, ptac_dtype logits)
{
    return !view->data || view->dtype == PTAC_F32 || view->dtype == logits;
}

static ptac_reason accepts_tensors(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;
    const ptac_view *inputs = call->inputs,
                    *target = &inputs[PTAC_CROSS_ENTROPY_TARGET];
    const ptac_dtype dtype = inputs[PTAC_CROSS_ENTROPY_X].dtype;

    if (!p->saves_log_sum)
        return PTAC_ARGUMENT;
    if ((dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16) ||
        (target->dtype != PTAC_I64 && !is_readable(target, dtype)) ||
        !is_readable(&inputs[PTAC_CROSS_ENTROPY_WEIGHT], dtype) ||
        (call->op == PTAC_OP_CROSS_ENTROPY_BACKWARD &&
         !is_readable(&inputs[PTAC_CROSS_ENTROPY_GRAD], dtype)))
        return PTAC_DTYPE;
    if (p->n_rows > INT32_MAX || p->n_classes > INT32_MAX / 2)
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* Both directions or none: what forward saves stock's gradient cannot read. */
static ptac_reason accepts(const ptac_call *call)
{
    const ptac_reason why = accepts_tensors(call);
    const ptac_reason of_forward = why ? why : ptac_cuda_ask(&unit_cross_entropy);
    const ptac_reason of_backward =
        why ? why : ptac_cuda_ask(&unit_cross_entropy_backward);

    return of_forward ? of_forward : of_backward;
}

static bool is_soft(const ptac_call *call)
{
    return !ptac_cross_entropy_is_plain(call);
}

static bool is_long(const ptac_call *call)
{
    return ((const ptac_cross_entropy *)call->params)->n_classes >
           PTAC_CROSS_ENTROPY_SHORT;
}

static int64_t n_blocks(const ptac_call *call)
{
    const int64_t n_rows = ((const ptac_cross_entropy *)call->params)->n_rows;

    return is_long(call) ? n_rows : ptac_parts(n_rows, ROWS_A_BLOCK);
}

/* loss: forward's output, or the gradient of it. */
static ptac_cuda_cross_entropy params_of(const ptac_call *call, const ptac_view *loss)
{
    const ptac_cross_entropy *p = call->params;
    const ptac_view *x = &call->inputs[PTAC_CROSS_ENTROPY_X];
    const ptac_view *target = &call->inputs[PTAC_CROSS_ENTROPY_TARGET];
    const uintptr_t between = (uintptr_t)x->data ^ (uintptr_t)call->outputs[0].data;

    return (ptac_cuda_cross_entropy){
        .n_rows = p->n_rows,
        .n_classes = (int)p->n_classes,
        .ignore_index = p->ignore_index,
        .scale = (float)(1 - p->label_smoothing),
        .shift = (float)(p->label_smoothing / (double)p->n_classes),
        .target = operand(target, x->dtype),
        .weight = operand(&call->inputs[PTAC_CROSS_ENTROPY_WEIGHT], x->dtype),
        .loss = operand(loss, x->dtype),
        .is_reduced = p->reduction != PTAC_REDUCE_NONE,
        .is_mean = p->reduction == PTAC_REDUCE_MEAN,
        .has_packs = between % 16 == 0,
    };
}

static ptac_status run_reduction(const ptac_call *call, ptac_cuda_cross_entropy *p)
{
    const ptac_dtype dtype = call->inputs[PTAC_CROSS_ENTROPY_X].dtype;
    void *loss = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    void *saved = call->outputs[PTAC_CROSS_ENTROPY_SAVED].data;
    void *work = call->outputs[PTAC_CROSS_ENTROPY_WORK].data;
    int has_parts = p->n_rows > MOST_SUMMED_AT_ONCE;
    ptac_status status = PTAC_OK;

    if (has_parts)
        status = ptac_cuda_launch(&parts, call, PTAC_CROSS_ENTROPY_PARTS,
                                  PTAC_SOFTMAX_THREADS,
                                  PTAC_PARAMETERS(&work, &work, &p->n_rows));
    if (status)
        return status;
    return ptac_cuda_launch(&reduce[dtype], call, 1, PTAC_SOFTMAX_THREADS,
                            PTAC_PARAMETERS(&work, &loss, &saved, p, &has_parts));
}

static ptac_status run(const ptac_call *call)
{
    const ptac_view *inputs = call->inputs, *outputs = call->outputs;
    const void *x = inputs[PTAC_CROSS_ENTROPY_X].data;
    const void *target = inputs[PTAC_CROSS_ENTROPY_TARGET].data;
    const void *weight = inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;
    void *loss = outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    void *saved = outputs[PTAC_CROSS_ENTROPY_SAVED].data;
    void *work = outputs[PTAC_CROSS_ENTROPY_WORK].data;
    ptac_cuda_cross_entropy p = params_of(call, &outputs[PTAC_CROSS_ENTROPY_LOSS]);
    const ptac_status status = ptac_cuda_launch(
        &forward[is_soft(call)][is_long(call)][inputs[0].dtype], call, n_blocks(call),
        PTAC_SOFTMAX_THREADS,
        PTAC_PARAMETERS(&x, &target, &weight, &loss, &saved, &work, &p));

    return status || !p.is_reduced ? status : run_reduction(call, &p);
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_view *inputs = call->inputs;
    const void *x = inputs[PTAC_CROSS_ENTROPY_X].data;
    const void *target = inputs[PTAC_CROSS_ENTROPY_TARGET].data;
    const void *weight = inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;
    const void *grad = inputs[PTAC_CROSS_ENTROPY_GRAD].data;
    const void *saved = inputs[PTAC_CROSS_ENTROPY_SAVED_BEFORE].data;
    void *grad_x = call->outputs[PTAC_CROSS_ENTROPY_GRAD_X].data;
    ptac_cuda_cross_entropy p = params_of(call, &inputs[PTAC_CROSS_ENTROPY_GRAD]);

    return ptac_cuda_launch(
        &backward[is_soft(call)][is_long(call)][inputs[0].dtype], call, n_blocks(call),
        PTAC_SOFTMAX_THREADS,
        PTAC_PARAMETERS(&x, &target, &weight, &grad, &saved, &grad_x, &p));
}

PTAC_ROW(CROSS_ENTROPY, "cuda", PTAC_CLOSE, 0, accepts, run, .device = PTAC_ON_CUDA)
PTAC_ROW(CROSS_ENTROPY_BACKWARD, "cuda", PTAC_CLOSE, 0, accepts, run_backward,
         .device = PTAC_ON_CUDA)
