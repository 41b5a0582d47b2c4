/*
 * cross_entropy.c - taking logits, targets and weights apart for the rows.
 */
#include "bind/torch/rows/cross_entropy.h"

#include "bind/torch/cuda.h"

static ptac_reason check_logits(const ptac_view *x, ptac_device on)
{
    const bool is_of_16_bits = x->dtype == PTAC_F16 || x->dtype == PTAC_BF16;

    if (x->dtype != PTAC_F32 && !(on == PTAC_ON_CUDA && is_of_16_bits))
        return PTAC_DTYPE;
    if (x->n_dims != 2)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    return ptac_view_is_contiguous(x) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* Class indices [n] or probabilities [n, classes], or why neither. */
static ptac_reason check_target(const ptac_view *target, const ptac_view *x)
{
    if (target->dtype == PTAC_I64) {
        if (target->n_dims != 1 || target->sizes[0] != x->sizes[0])
            return PTAC_ARGUMENT;
        return ptac_view_is_contiguous(target) ? PTAC_TAKE : PTAC_LAYOUT;
    }
    if (target->dtype != PTAC_F32 && target->dtype != x->dtype)
        return PTAC_DTYPE;
    if (target->n_dims != 2 || !ptac_view_is_alike(target, x))
        return target->n_dims == 2 ? PTAC_LAYOUT : PTAC_ARGUMENT;
    return PTAC_TAKE;
}

/* Torch's kernel for indices takes weights of the logits' dtype alone. */
static ptac_reason check_weight(const ptac_view *weight, const ptac_call *call,
                                bool autocasts)
{
    const ptac_view *x = &call->inputs[PTAC_CROSS_ENTROPY_X];
    const bool may_be_wider =
        autocasts || call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype != PTAC_I64;

    if (weight->dtype != x->dtype && !(may_be_wider && weight->dtype == PTAC_F32))
        return PTAC_DTYPE;
    if (weight->n_dims != 1 || weight->sizes[0] != x->sizes[1])
        return PTAC_ARGUMENT;
    return ptac_view_is_contiguous(weight) ? PTAC_TAKE : PTAC_LAYOUT;
}

/* What torch promotes to; float32 of any floats under autocast. */
static ptac_dtype loss_dtype(const ptac_cross_entropy_args *args, const ptac_call *call)
{
    const ptac_view *inputs = call->inputs;
    const bool is_float =
        inputs[PTAC_CROSS_ENTROPY_TARGET].dtype == PTAC_F32 ||
        (args->weight && inputs[PTAC_CROSS_ENTROPY_WEIGHT].dtype == PTAC_F32);

    return args->autocasts || is_float ? PTAC_F32 : inputs[PTAC_CROSS_ENTROPY_X].dtype;
}

static ptac_reason view_inputs(const ptac_cross_entropy_args *args, ptac_call *call)
{
    ptac_view *x = &call->inputs[PTAC_CROSS_ENTROPY_X];
    ptac_view *target = &call->inputs[PTAC_CROSS_ENTROPY_TARGET];
    ptac_view *weight = &call->inputs[PTAC_CROSS_ENTROPY_WEIGHT];
    ptac_reason why;

    call->n_inputs = 3;
    ptac_view_on(args->on, args->x, x);
    ptac_view_on(args->on, args->target, target);
    why = check_logits(x, args->on);
    if (!why)
        why = check_target(target, x);
    if (!why && args->weight) {
        ptac_view_on(args->on, args->weight, weight);
        why = check_weight(weight, call, args->autocasts);
    }
    return why ? why : ptac_call_place(call);
}

ptac_reason ptac_cross_entropy_read(const ptac_cross_entropy_args *args,
                                    ptac_cross_entropy *params, ptac_call *call)
{
    *call = (ptac_call){.op = PTAC_OP_CROSS_ENTROPY, .on = args->on, .params = params};

    const ptac_view *x = &call->inputs[PTAC_CROSS_ENTROPY_X];
    const ptac_reason why = view_inputs(args, call);
    const bool has_indices = call->inputs[PTAC_CROSS_ENTROPY_TARGET].dtype == PTAC_I64;

    if (why)
        return why;
    if (args->reduction < PTAC_REDUCE_NONE || args->reduction > PTAC_REDUCE_SUM ||
        !(args->label_smoothing >= 0 && args->label_smoothing <= 1))
        return PTAC_ARGUMENT;
    /*
     * Probabilities ignore nothing: torch refuses any ignore_index that is not
     * negative.
     */
    if (!has_indices && args->ignore_index >= 0)
        return PTAC_ARGUMENT;
    *params = (ptac_cross_entropy){
        .n_rows = x->sizes[0],
        .n_classes = x->sizes[1],
        .ignore_index = args->ignore_index,
        .label_smoothing = args->label_smoothing,
        .reduction = (ptac_reduction)args->reduction,
        .saves_log_sum = args->on == PTAC_ON_CUDA,
    };
    call->outputs[PTAC_CROSS_ENTROPY_LOSS].dtype = loss_dtype(args, call);
    return PTAC_TAKE;
}

static bool refused(ptac_op op, ptac_reason why)
{
    ptac_refuse(op, why);
    return false;
}

/* A new tensor as output i of the call. */
static at_error make(ptac_call *call, int i, ptac_dtype dtype, int n_dims,
                     const int64_t *sizes, at_tensor *made)
{
    return ptac_new_on((at_device){call->on, call->device}, dtype, n_dims, sizes, NULL,
                       made, &call->outputs[i]);
}

/* What the row saves for backward, and what it works in. */
static at_error make_saved(ptac_call *call, at_tensor *saved, at_tensor *work)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t n_saved = ptac_cross_entropy_saved(params);
    const int64_t n_work = ptac_cross_entropy_work(params);
    const at_error error =
        make(call, PTAC_CROSS_ENTROPY_SAVED, PTAC_F32, 1, &n_saved, saved);

    call->n_outputs = 3;
    return error ? error
                 : make(call, PTAC_CROSS_ENTROPY_WORK, PTAC_F64, 1, &n_work, work);
}

static at_error make_p(ptac_call *call, at_tensor *p)
{
    const ptac_cross_entropy *params = call->params;

    return make(call, PTAC_CROSS_ENTROPY_P, PTAC_F32, 2,
                (int64_t[]){params->n_rows, params->n_classes}, p);
}

bool ptac_cross_entropy_run(const ptac_kernel *row, ptac_call *call, at_tensor *loss,
                            at_tensor *kept)
{
    const ptac_cross_entropy *params = call->params;
    const bool is_reduced = params->reduction != PTAC_REDUCE_NONE;
    AT_OWNED at_tensor new_loss = NULL, new_kept = NULL, work = NULL;
    PTAC_CUDA_SCOPE scope = {false};
    at_error error;

    if (!ptac_cuda_begin(call, &scope))
        return refused(call->op, PTAC_DEVICE);
    call->n_outputs = 2;
    error = make(call, PTAC_CROSS_ENTROPY_LOSS,
                 call->outputs[PTAC_CROSS_ENTROPY_LOSS].dtype, is_reduced ? 0 : 1,
                 &params->n_rows, &new_loss);
    if (!error && params->saves_log_sum)
        error = make_saved(call, &new_kept, &work);
    else if (!error && kept)
        error = make_p(call, &new_kept);
    if (error)
        return refused(call->op, PTAC_MEMORY);
    if (!ptac_run(row, call))
        return false;
    *loss = at_give(&new_loss);
    if (kept)
        *kept = at_give(&new_kept);
    return true;
}

/* n floats of these dtypes, one behind the other. */
static bool are_floats(const ptac_view *view, int64_t n, ptac_dtype also)
{
    return (view->dtype == PTAC_F32 || view->dtype == also) && view->n_elements == n &&
           ptac_view_is_contiguous(view);
}

/* Views of grad and saved too. Dtypes may be mixed as forward has mixed them. */
static ptac_reason read_backward(const ptac_cross_entropy_args *args, at_tensor grad,
                                 at_tensor saved, ptac_cross_entropy *params,
                                 ptac_call *call)
{
    ptac_cross_entropy_args mixed = *args;
    ptac_view *g = &call->inputs[PTAC_CROSS_ENTROPY_GRAD];
    ptac_view *s = &call->inputs[PTAC_CROSS_ENTROPY_SAVED_BEFORE];
    ptac_reason why;
    int64_t n;

    mixed.autocasts = true;
    why = ptac_cross_entropy_read(&mixed, params, call);
    call->op = PTAC_OP_CROSS_ENTROPY_BACKWARD;
    call->n_inputs = saved ? 5 : 4;
    call->n_outputs = 1;
    if (why)
        return why;
    ptac_view_on(call->on, grad, g);
    if (saved)
        ptac_view_on(call->on, saved, s);
    n = params->reduction == PTAC_REDUCE_NONE ? params->n_rows : 1;
    if (!are_floats(g, n, call->inputs[PTAC_CROSS_ENTROPY_X].dtype) ||
        (saved && !are_floats(s, ptac_cross_entropy_saved(params), PTAC_F32)))
        return PTAC_ARGUMENT;
    return ptac_call_place(call);
}

/* By a row that has been chosen, or by the one of that name, if that is admitted. */
static bool run_gradient(const ptac_kernel *row, const char *row_name,
                         const ptac_cross_entropy_args *args, at_tensor grad,
                         at_tensor saved, bool over_p, at_tensor *grad_x)
{
    ptac_cross_entropy params;
    ptac_call call;
    const ptac_reason why = read_backward(args, grad, saved, &params, &call);
    AT_OWNED at_tensor made = NULL;
    PTAC_CUDA_SCOPE scope = {false};

    if (why)
        return refused(call.op, why);
    if (row)
        call.n_threads = ptac_the_host.n_threads();
    else
        row = ptac_admit_row(&call, row_name);
    if (!row)
        return false;
    if (!ptac_cuda_begin(&call, &scope))
        return refused(call.op, PTAC_DEVICE);

    const int64_t sizes[2] = {params.n_rows, params.n_classes};
    const int64_t strides[2] = {params.n_classes, 1};

    /* Over p: under a handle that autograd has nothing to say about. */
    if (over_p ? T.aoti_torch__reinterpret_tensor(args->x, 2, sizes, strides, 0, &made)
               : make(&call, PTAC_CROSS_ENTROPY_GRAD_X, call.inputs[0].dtype, 2, sizes,
                      &made))
        return refused(call.op, PTAC_MEMORY);
    ptac_view_on(call.on, made, &call.outputs[PTAC_CROSS_ENTROPY_GRAD_X]);
    if (!ptac_run(row, &call))
        return false;
    *grad_x = at_give(&made);
    return true;
}

bool ptac_cross_entropy_gradient(const char *row_name,
                                 const ptac_cross_entropy_args *args, at_tensor grad,
                                 at_tensor saved, bool over_p, at_tensor *grad_x)
{
    return run_gradient(NULL, row_name, args, grad, saved, over_p, grad_x);
}

bool ptac_cross_entropy_gradient_by(const ptac_kernel *row,
                                    const ptac_cross_entropy_args *args, at_tensor grad,
                                    at_tensor *grad_x)
{
    return run_gradient(row, NULL, args, grad, NULL, true, grad_x);
}
