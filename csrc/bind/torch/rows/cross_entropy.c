/*
 * cross_entropy.c - taking logits, targets and weights apart for the rows.
 */
#include "bind/torch/rows/cross_entropy.h"

/* Class indices [n] or probabilities [n, classes], or why neither. */
static ptac_reason check_target(const ptac_view *target, const ptac_view *x)
{
    if (target->dtype == PTAC_I64) {
        if (target->n_dims != 1 || target->sizes[0] != x->sizes[0])
            return PTAC_ARGUMENT;
        return ptac_view_is_contiguous(target) ? PTAC_TAKE : PTAC_LAYOUT;
    }
    if (target->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (target->n_dims != 2 || !ptac_view_is_alike(target, x))
        return target->n_dims == 2 ? PTAC_LAYOUT : PTAC_ARGUMENT;
    return PTAC_TAKE;
}

ptac_reason ptac_cross_entropy_read(const ptac_cross_entropy_args *args,
                                    ptac_cross_entropy *params, ptac_call *call)
{
    *call = (ptac_call){.op = PTAC_OP_CROSS_ENTROPY, .params = params};

    ptac_view *x = &call->inputs[PTAC_CROSS_ENTROPY_X];
    ptac_view *target = &call->inputs[PTAC_CROSS_ENTROPY_TARGET];
    ptac_view *weight = &call->inputs[PTAC_CROSS_ENTROPY_WEIGHT];
    ptac_reason why;

    call->n_inputs = 3;
    ptac_view_of(args->x, x);
    ptac_view_of(args->target, target);
    why = ptac_floats_reason(x, 2);
    if (!why && !ptac_view_is_contiguous(x))
        why = PTAC_LAYOUT;
    if (!why)
        why = check_target(target, x);
    if (!why && args->weight) {
        ptac_view_of(args->weight, weight);
        why = ptac_vector_reason(weight, x->sizes[1]);
    }
    if (why)
        return why;
    if (args->reduction < PTAC_REDUCE_NONE || args->reduction > PTAC_REDUCE_SUM ||
        !(args->label_smoothing >= 0 && args->label_smoothing <= 1))
        return PTAC_ARGUMENT;
    /*
     * Probabilities ignore nothing: torch refuses any ignore_index that is not
     * negative.
     */
    if (target->dtype == PTAC_F32 && args->ignore_index >= 0)
        return PTAC_ARGUMENT;
    *params = (ptac_cross_entropy){
        .n_rows = x->sizes[0],
        .n_classes = x->sizes[1],
        .ignore_index = args->ignore_index,
        .label_smoothing = args->label_smoothing,
        .reduction = (ptac_reduction)args->reduction,
    };
    return PTAC_TAKE;
}

static bool no_memory(ptac_op op)
{
    ptac_refuse(op, PTAC_MEMORY);
    return false;
}

bool ptac_cross_entropy_run(const ptac_kernel *row, ptac_call *call, at_tensor *loss,
                            at_tensor *p)
{
    const ptac_cross_entropy *params = call->params;
    const bool is_reduced = params->reduction != PTAC_REDUCE_NONE;
    ptac_view *outputs = call->outputs;
    AT_OWNED at_tensor new_loss = NULL, new_p = NULL;

    if (ptac_new(PTAC_F32, is_reduced ? 0 : 1, &params->n_rows, NULL, &new_loss,
                 &outputs[PTAC_CROSS_ENTROPY_LOSS]) ||
        (p && ptac_new_matrix(params->n_rows, params->n_classes, &new_p,
                              &outputs[PTAC_CROSS_ENTROPY_P])))
        return no_memory(call->op);
    call->n_outputs = 2;
    if (!ptac_run(row, call))
        return false;
    *loss = at_give(&new_loss);
    if (p)
        *p = at_give(&new_p);
    return true;
}

bool ptac_cross_entropy_gradient(const char *row_name,
                                 const ptac_cross_entropy_args *args, at_tensor grad,
                                 bool over_p, at_tensor *grad_x)
{
    ptac_cross_entropy params;
    ptac_call call;
    ptac_reason why = ptac_cross_entropy_read(args, &params, &call);
    ptac_view *g = &call.inputs[PTAC_CROSS_ENTROPY_GRAD];
    AT_OWNED at_tensor made = NULL;

    call.op = PTAC_OP_CROSS_ENTROPY_BACKWARD;
    call.n_inputs = 4;
    call.n_outputs = 1;
    ptac_view_of(grad, g);
    if (!why) {
        const int64_t n = params.reduction == PTAC_REDUCE_NONE ? params.n_rows : 1;

        if (g->dtype != PTAC_F32 || g->n_elements != n || !ptac_view_is_contiguous(g))
            why = PTAC_ARGUMENT;
    }
    if (why) {
        ptac_refuse(call.op, why);
        return false;
    }

    const ptac_kernel *row = ptac_admit_row(&call, row_name);

    if (!row)
        return false;

    const int64_t sizes[2] = {params.n_rows, params.n_classes};
    const int64_t strides[2] = {params.n_classes, 1};

    /* Over p: under a handle that autograd has nothing to say about. */
    if (over_p ? T.aoti_torch__reinterpret_tensor(args->x, 2, sizes, strides, 0, &made)
               : ptac_new_matrix(params.n_rows, params.n_classes, &made, NULL))
        return no_memory(call.op);
    ptac_view_of(made, &call.outputs[PTAC_CROSS_ENTROPY_GRAD_X]);
    if (!ptac_run(row, &call))
        return false;
    *grad_x = at_give(&made);
    return true;
}
