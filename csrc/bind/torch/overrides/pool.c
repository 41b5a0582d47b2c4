/*
 * pool.c - reading pooling's arguments, and serving a call.
 */
#include "bind/torch/overrides/pool.h"

at_pair at_take_pair(stable_ivalue boxed)
{
    at_pair pair;

    pair.n = at_take_ints(boxed, pair.values);
    return pair;
}

stable_ivalue at_pair_box(const at_pair *pair)
{
    return at_make_ints(pair->values, pair->n > 4 ? 4 : pair->n);
}

ptac_reason ptac_read_window(const at_window *args, const ptac_view *x,
                             ptac_window2d *window, ptac_image *image)
{
    const at_pair *stride = args->stride.n ? &args->stride : &args->kernel;
    ptac_window *h = &window->h, *w = &window->w;
    const ptac_reason why = ptac_image_of(x, image);

    if (why)
        return why;
    if (!at_pair_is_given(&args->kernel) || !at_pair_is_given(stride) ||
        !at_pair_is_given(&args->padding) || !at_pair_is_given(&args->dilation))
        return PTAC_ARGUMENT;
    *h = (ptac_window){args->kernel.values[0], stride->values[0],
                       args->padding.values[0], args->dilation.values[0]};
    *w = (ptac_window){args->kernel.values[1], stride->values[1],
                       args->padding.values[1], args->dilation.values[1]};
    window->ceil_mode = args->ceil_mode;
    if (!ptac_window_is_valid(h) || !ptac_window_is_valid(w))
        return PTAC_ARGUMENT;
    image->out_h = ptac_window_outputs(h, image->h, args->ceil_mode);
    image->out_w = ptac_window_outputs(w, image->w, args->ceil_mode);
    if (image->out_h < 1 || image->out_w < 1)
        return PTAC_ARGUMENT;
    if (!ptac_window_always_hits(h, image->h, image->out_h) ||
        !ptac_window_always_hits(w, image->w, image->out_w))
        return PTAC_SHAPE;
    return PTAC_TAKE;
}

/* Sizes of a pooled batch: those of the input but for the last two. */
static void pooled_sizes(const ptac_view *input, const ptac_image *image,
                         int64_t sizes[4])
{
    for (int i = 0; i < input->n_dims; i++)
        sizes[i] = input->sizes[i];
    sizes[input->n_dims - 2] = image->out_h;
    sizes[input->n_dims - 1] = image->out_w;
}

static bool has_sizes(const ptac_view *view, int n_dims, const int64_t *sizes)
{
    if (view->n_dims != n_dims)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (view->sizes[i] != sizes[i])
            return false;
    return true;
}

static void drop_tensors(at_tensor (*owned)[PTAC_POOL_TENSORS])
{
    for (int i = 0; i < PTAC_POOL_TENSORS; i++)
        at_drop_tensor(&(*owned)[i]);
}

#define AT_OWNED_TENSORS __attribute__((cleanup(drop_tensors)))

/* Outputs have these sizes and the layout that the inputs are read in, without gaps. */
static bool serve(ptac_pool_job *job, int n_dims, const int64_t *sizes, at_tensor *out)
{
    AT_OWNED_TENSORS at_tensor dense[PTAC_POOL_TENSORS] = {0};
    AT_OWNED_TENSORS at_tensor made[PTAC_POOL_TENSORS] = {0};
    ptac_call *call = &job->call;
    const bool channels_last = job->image->channels_last;
    const ptac_kernel *row = ptac_admit(call);
    int64_t strides[4];

    if (!row)
        return false;
    for (int i = 0; i < call->n_inputs; i++) {
        dense[i] = at_dense(job->inputs[i], &call->inputs[i], channels_last);
        ptac_view_of(dense[i], &call->inputs[i]);
    }
    ptac_image_strides(n_dims, sizes, channels_last, strides);
    for (int i = 0; i < call->n_outputs; i++) {
        const ptac_dtype dtype = i == 0 ? call->inputs[0].dtype : PTAC_I64;

        made[i] = at_empty(n_dims, sizes, strides, ptac_torch_dtype_of(dtype));
        ptac_view_of(made[i], &call->outputs[i]);
    }

    if (!ptac_run_checked(row, call, made, job->stock, job->args))
        return false;
    for (int i = 0; i < call->n_outputs; i++)
        out[i] = at_give(&made[i]);
    return true;
}

bool ptac_pool_forward(ptac_pool_job *job, ptac_reason why, at_tensor *out)
{
    const ptac_view *x = &job->call.inputs[0];
    int64_t sizes[4];

    if (why) {
        ptac_refuse(job->call.op, why);
        return false;
    }
    pooled_sizes(x, job->image, sizes);
    return serve(job, x->n_dims, sizes, out);
}

bool ptac_pool_backward(ptac_pool_job *job, ptac_reason why, const ptac_view *x,
                        at_tensor *out)
{
    const ptac_call *call = &job->call;
    int64_t sizes[4];

    if (!why)
        pooled_sizes(x, job->image, sizes);
    for (int i = 0; i < call->n_inputs && !why; i++) {
        if (call->inputs[i].dtype != (i == 0 ? x->dtype : PTAC_I64))
            why = PTAC_DTYPE;
        else if (!has_sizes(&call->inputs[i], x->n_dims, sizes))
            why = PTAC_ARGUMENT;
    }
    if (why) {
        ptac_refuse(call->op, why);
        return false;
    }
    return serve(job, x->n_dims, x->sizes, out);
}
