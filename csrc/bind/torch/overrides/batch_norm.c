/*
 * batch_norm.c - aten's batch normalization on the CPU, and its gradient. Instance
 * normalization comes here too.
 *
 * Source: ATen/native/Normalization.cpp, for sizes, dtypes and layouts.
 */
#include "bind/torch/overrides/override.h"
#include "core/scratch.h"
#include "ops/norm/batch_norm.h"

enum {
    /* Arguments of aten::native_batch_norm: */
    X = 0,
    WEIGHT,
    BIAS,
    RUNNING_MEAN,
    RUNNING_VAR,
    TRAINING,
    MOMENTUM,
    EPS,
    /* and of its gradient: */
    GRAD_Y = 0,
    GRAD_X_OF,
    GRAD_WEIGHT_OF,
    GRAD_RUNNING_MEAN,
    GRAD_RUNNING_VAR,
    GRAD_MEAN,
    GRAD_RSTD,
    GRAD_TRAINING,
    GRAD_EPS,
    GRAD_MASK,
};

/* How x lies, and its results: in order of dimensions, or with channels last. */
typedef struct layout {
    int64_t strides[PTAC_MAX_DIMS];
    bool channels_last;
    bool is_dense; /* x does; else it has to be copied */
} layout;

/* Stock's rule: contiguous where x is, else channels_last where x is. */
static ptac_reason read_layout(const ptac_view *x, layout *l)
{
    int64_t stride = 1;

    l->is_dense = true;
    l->channels_last = false;
    if (!ptac_view_is_contiguous(x)) {
        l->channels_last = ptac_view_is_channels_last(x);
        l->is_dense = l->channels_last;
    }
    if (!l->is_dense && (x->n_dims > 4 || ptac_view_suggests_channels_last(x)))
        return PTAC_LAYOUT;
    if (l->channels_last) {
        l->strides[1] = 1;
        stride = x->sizes[1];
    }
    for (int d = x->n_dims - 1; d >= 0; d--) {
        if (l->channels_last && d == 1)
            continue;
        l->strides[d] = stride;
        stride *= x->sizes[d];
    }
    return PTAC_TAKE;
}

static ptac_reason read_x(const ptac_view *x, layout *l, ptac_channel_norm *p)
{
    if (x->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (x->n_dims < 2 || x->n_dims > 5)
        return PTAC_SHAPE;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    p->n_channels = x->sizes[1];
    p->n_images = x->sizes[0];
    p->n_pixels = x->n_elements / (p->n_images * p->n_channels);

    const ptac_reason why = read_layout(x, l);

    if (l->channels_last) {
        p->n_images *= p->n_pixels;
        p->n_pixels = 1;
    }
    return why;
}

/* The row that takes a call, which may have been refused. */
static const ptac_kernel *admit(ptac_call *call, ptac_reason why)
{
    if (!why)
        return ptac_admit(call);
    ptac_refuse(call->op, why);
    return NULL;
}

static bool lacks_memory(const ptac_call *call, bool is_short)
{
    if (is_short)
        ptac_refuse(call->op, PTAC_MEMORY);
    return is_short;
}

/* Take an argument with an element for each channel; where there is none, no data. */
static ptac_reason take_channels(const ptac_argument *argument, int64_t n_channels,
                                 ptac_view *view)
{
    *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if (!argument->is_given)
        return PTAC_TAKE;
    *view = argument->view;
    return ptac_vector_reason(view, n_channels);
}

static at_error make_like_x(const ptac_view *x, const layout *l, at_tensor *made,
                            ptac_view *view)
{
    return ptac_new(PTAC_F32, x->n_dims, x->sizes, l->strides, made, view);
}

/* x or its gradient as its layout says, dense. */
static at_tensor dense_of(at_tensor tensor, const layout *l, ptac_view *view)
{
    at_tensor dense;

    if (l->channels_last ? ptac_view_is_channels_last(view)
                         : ptac_view_is_contiguous(view))
        return NULL;
    dense = at_dense(tensor, view, l->channels_last);
    ptac_view_of(dense, view);
    return dense;
}

/* Stock's y and statistics. Running statistics have been, or will be, updated once. */
static void stock_without_running(const void *context, at_tensor *out)
{
    ptac_arguments args = *(const ptac_arguments *)context;

    if (args.at[TRAINING].truth)
        for (int i = RUNNING_MEAN; i <= RUNNING_VAR; i++) {
            args.at[i].tensor = NULL;
            args.at[i].is_given = false;
        }
    ptac_override_stock(&args, out);
}

static ptac_reason read_forward(const ptac_arguments *args, ptac_call *call, layout *l,
                                ptac_channel_norm *p)
{
    const ptac_view *x = &args->at[X].view;
    ptac_reason why = read_x(x, l, p);

    call->inputs[PTAC_BATCH_NORM_X] = *x;
    for (int i = WEIGHT; !why && i <= RUNNING_VAR; i++)
        why = take_channels(&args->at[i], p->n_channels, &call->inputs[i]);
    p->by_batch = args->at[TRAINING].truth;
    p->momentum = args->at[MOMENTUM].real;
    p->eps = args->at[EPS].real;
    if (!why && !p->by_batch &&
        (!call->inputs[RUNNING_MEAN].data || !call->inputs[RUNNING_VAR].data))
        why = PTAC_ARGUMENT;
    return why;
}

/* y and statistics, which are empty where the batch is not asked. */
static at_error make_outputs(ptac_call *call, const layout *l, at_tensor *made)
{
    const ptac_channel_norm *p = call->params;
    const int64_t n = p->by_batch ? p->n_channels : 0;
    at_error error = make_like_x(&call->inputs[PTAC_BATCH_NORM_X], l, &made[0],
                                 &call->outputs[PTAC_BATCH_NORM_Y]);

    for (int i = PTAC_BATCH_NORM_MEAN; !error && i <= PTAC_BATCH_NORM_RSTD; i++)
        error = ptac_new(PTAC_F32, 1, &n, NULL, &made[i], &call->outputs[i]);
    return error;
}

/* Where the row puts new running statistics: on the old ones, or into room of ours. */
static void place_running(ptac_call *call, float *room)
{
    const ptac_channel_norm *p = call->params;

    for (int i = 0; i < 2; i++) {
        ptac_view *to = &call->outputs[PTAC_BATCH_NORM_NEW_MEAN + i];

        *to = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (!p->by_batch)
            continue;
        *to = call->inputs[PTAC_BATCH_NORM_RUNNING_MEAN + i];
        if (to->data && room)
            to->data = room + i * p->n_channels;
    }
}

static void take_running(const ptac_call *call)
{
    for (int i = 0; i < 2; i++) {
        const ptac_view *from = &call->outputs[PTAC_BATCH_NORM_NEW_MEAN + i];
        const ptac_view *to = &call->inputs[PTAC_BATCH_NORM_RUNNING_MEAN + i];

        if (from->data)
            memcpy(to->data, from->data, (size_t)to->n_elements * sizeof(float));
    }
}

static void give_scratch(float **scratch)
{
    ptac_scratch_give(*scratch);
}

/*
 * A row whose numbers a shadow check finds wrong must not have updated anything: it
 * then works in room of ours, and stock does the call.
 */
static bool run_forward(const ptac_arguments *args, const ptac_kernel *row,
                        ptac_call *call, at_tensor *made)
{
    const ptac_channel_norm *p = call->params;
    const bool is_checked = p->by_batch && ptac_shadow_is_on();
    __attribute__((cleanup(give_scratch))) float *room = NULL;

    if (is_checked) {
        room = ptac_scratch_take(2 * (size_t)p->n_channels * sizeof(float));
        if (lacks_memory(call, !room))
            return false;
    }
    place_running(call, room);
    if (!ptac_run_checked(row, call, 3, made, stock_without_running, args))
        return false;
    if (is_checked && ptac_chooser_is_quarantined(row))
        return false;
    if (is_checked)
        take_running(call);
    return true;
}

static bool serve_forward(const ptac_arguments *args, at_tensor *out)
{
    AT_OWNED at_tensor dense = NULL;
    AT_OWNED_ALL at_tensors made = {{NULL}};
    ptac_channel_norm params;
    ptac_call call = {
        .op = PTAC_OP_BATCH_NORM,
        .n_inputs = PTAC_BATCH_NORM_N_INPUTS,
        .n_outputs = PTAC_BATCH_NORM_N_OUTPUTS,
        .params = &params,
    };
    layout l;
    const ptac_reason why = read_forward(args, &call, &l, &params);
    const ptac_kernel *row = admit(&call, why);

    if (!row)
        return false;
    dense = dense_of(args->at[X].tensor, &l, &call.inputs[PTAC_BATCH_NORM_X]);
    if (lacks_memory(&call, make_outputs(&call, &l, made.at)) ||
        !run_forward(args, row, &call, made.at))
        return false;
    for (int i = 0; i < args->of->n_outputs; i++)
        out[i] = at_give(&made.at[i]);
    return true;
}

static ptac_override batch_norm = {
    .schema = "native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, "
              "Tensor? running_mean, Tensor? running_var, bool training, "
              "float momentum, float eps) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_BATCH_NORM,
    .serve = serve_forward,
};
PTAC_OVERRIDE(batch_norm, cpu_batch_norm, TENSOR(0), OPTIONAL_TENSOR(1),
              OPTIONAL_TENSOR(2), OPTIONAL_TENSOR(3), OPTIONAL_TENSOR(4), BOOL(5),
              REAL(6), REAL(7))

/*
 * Stock's gradient of x lies as our layout says: where x and grad are dense and suggest
 * the same, or else where x suggests that.
 */
static bool lies_as_stocks(const ptac_view *x, const ptac_view *grad, const layout *l)
{
    const bool suggested = ptac_view_suggests_channels_last(x);
    const bool is_dense =
        ptac_view_is_contiguous(grad) || ptac_view_is_channels_last(grad);

    if (l->channels_last && x->n_dims != 4 && !ptac_view_is_channels_last(grad))
        return false;
    return l->channels_last == suggested ||
           (is_dense && ptac_view_suggests_channels_last(grad) == suggested);
}

static ptac_reason read_backward(const ptac_arguments *args, ptac_call *call, layout *l,
                                 ptac_channel_norm *p)
{
    const ptac_view *x = &args->at[GRAD_X_OF].view, *grad = &args->at[GRAD_Y].view;
    ptac_reason why = read_x(x, l, p);

    p->by_batch = args->at[GRAD_TRAINING].truth;
    p->eps = args->at[GRAD_EPS].real;
    p->momentum = 0;
    call->inputs[PTAC_BATCH_NORM_GRAD_Y] = *grad;
    call->inputs[PTAC_BATCH_NORM_GRAD_X_OF] = *x;
    if (!why && grad->dtype != PTAC_F32)
        why = PTAC_DTYPE;
    if (!why && !ptac_view_has_sizes(grad, x->n_dims, x->sizes))
        why = PTAC_ARGUMENT;
    if (!why && !lies_as_stocks(x, grad, l))
        why = PTAC_LAYOUT;
    if (!why)
        why = take_channels(&args->at[GRAD_WEIGHT_OF], p->n_channels,
                            &call->inputs[PTAC_BATCH_NORM_GRAD_WEIGHT_OF]);
    for (int i = 0; !why && i < 2; i++) {
        ptac_view *to = &call->inputs[PTAC_BATCH_NORM_GRAD_MEAN + i];
        const int from = p->by_batch ? GRAD_MEAN : GRAD_RUNNING_MEAN;

        why = take_channels(&args->at[from + i], p->n_channels, to);
        if (!why && !to->data)
            why = PTAC_ARGUMENT;
    }
    return why;
}

/* The gradients that are asked for, one behind the other; how many comes back. */
static int pack(const ptac_arguments *args, at_tensor *all, at_tensor *packed)
{
    int n = 0;

    for (int i = 0; i < args->of->n_outputs; i++)
        if (BOOLS(GRAD_MASK)[i])
            packed[n++] = at_give(&all[i]);
    return n;
}

static void stock_gradients(const void *context, at_tensor *out)
{
    AT_OWNED_ALL at_tensors grads = {{NULL}};

    ptac_override_stock(context, grads.at);
    pack(context, grads.at, out);
}

/* Others have no data. */
static at_error make_gradients(const ptac_arguments *args, ptac_call *call,
                               const layout *l, at_tensor *made)
{
    const ptac_channel_norm *p = call->params;
    at_error error = 0;

    for (int i = 0; !error && i < args->of->n_outputs; i++) {
        ptac_view *view = &call->outputs[i];

        *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (!BOOLS(GRAD_MASK)[i])
            continue;
        if (i == PTAC_BATCH_NORM_GRAD_X)
            error = make_like_x(&args->at[GRAD_X_OF].view, l, &made[i], view);
        else
            error = ptac_new(PTAC_F32, 1, &p->n_channels, NULL, &made[i], view);
    }
    return error;
}

/* Those that are not asked for are undefined tensors. */
static void unpack(const ptac_arguments *args, at_tensor *packed, at_tensor *out)
{
    for (int i = 0; i < args->of->n_outputs; i++) {
        if (BOOLS(GRAD_MASK)[i])
            out[i] = at_give(packed++);
        else
            at_must(T.aoti_torch_new_uninitialized_tensor(&out[i]),
                    "no memory for a handle");
    }
}

static bool serve_backward(const ptac_arguments *args, at_tensor *out)
{
    AT_OWNED_ALL at_tensors made = {{NULL}}, packed = {{NULL}}, dense = {{NULL}};
    ptac_channel_norm params;
    ptac_call call = {
        .op = PTAC_OP_BATCH_NORM_BACKWARD,
        .n_inputs = PTAC_BATCH_NORM_GRAD_N_INPUTS,
        .n_outputs = PTAC_BATCH_NORM_GRAD_N_OUTPUTS,
        .params = &params,
    };
    layout l;
    const ptac_reason why = read_backward(args, &call, &l, &params);
    const ptac_kernel *row = admit(&call, why);
    int n_made;

    if (!row)
        return false;
    for (int i = PTAC_BATCH_NORM_GRAD_Y; i <= PTAC_BATCH_NORM_GRAD_X_OF; i++)
        dense.at[i] = dense_of(args->at[i].tensor, &l, &call.inputs[i]);
    if (lacks_memory(&call, make_gradients(args, &call, &l, made.at)))
        return false;
    n_made = pack(args, made.at, packed.at);
    if (!ptac_run_checked(row, &call, n_made, packed.at, stock_gradients, args))
        return false;
    unpack(args, packed.at, out);
    return true;
}

static ptac_override batch_norm_backward = {
    .schema = "native_batch_norm_backward(Tensor grad_out, Tensor input, "
              "Tensor? weight, Tensor? running_mean, Tensor? running_var, "
              "Tensor? save_mean, Tensor? save_invstd, bool train, float eps, "
              "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    .op = PTAC_OP_BATCH_NORM_BACKWARD,
    .serve = serve_backward,
};
PTAC_OVERRIDE(batch_norm_backward, cpu_batch_norm_backward, TENSOR(0), TENSOR(1),
              OPTIONAL_TENSOR(2), OPTIONAL_TENSOR(3), OPTIONAL_TENSOR(4),
              OPTIONAL_TENSOR(5), OPTIONAL_TENSOR(6), BOOL(7), REAL(8), MASK(9))
