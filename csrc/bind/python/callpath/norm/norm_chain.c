/*
 * norm_chain.c - a BatchNorm and the activation behind it, run as one
 * batch_norm_act: by running statistics here, else in norm_chain_training.c.
 */
#include "bind/python/callpath/norm/norm_chain.h"

#include "bind/python/callpath/lean.h"

enum {
    ACTIVATIONS = PTAC_KIND_BIT(RELU) | PTAC_KIND_BIT(RELU6) | PTAC_KIND_BIT(SILU) |
                  PTAC_KIND_BIT(HARDSWISH),
};

ptac_reason ptac_norm_read_channels(PyObject *tensor, int64_t n_channels,
                                    ptac_view *view)
{
    *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if (tensor == Py_None)
        return PTAC_TAKE;
    ptac_view_of(ptac_borrow(tensor), view);
    return ptac_vector_reason(view, n_channels);
}

bool ptac_norm_takes(ptac_module_kind kind, int n_dims)
{
    switch (kind) {
    case PTAC_MODULE_BATCH_NORM1D:
        return n_dims == 2 || n_dims == 3;
    case PTAC_MODULE_BATCH_NORM2D:
        return n_dims == 4;
    default:
        return kind == PTAC_MODULE_BATCH_NORM3D && n_dims == 5;
    }
}

/* Volumes whose channels may be last are torch's. */
ptac_reason ptac_norm_read_x(const ptac_view *x, ptac_channel_norm *p,
                             bool *channels_last)
{
    if (x->n_dims < 2 || x->n_dims > 5)
        return PTAC_SHAPE;
    *channels_last = !ptac_view_is_contiguous(x);
    if (*channels_last && (x->n_dims != 4 || !ptac_view_is_channels_last(x)))
        return PTAC_LAYOUT;
    if (x->n_dims == 5 && ptac_view_suggests_channels_last(x))
        return PTAC_LAYOUT;
    p->n_channels = x->sizes[1];
    p->n_images = x->sizes[0];
    p->n_pixels = 1;
    for (int i = 2; i < x->n_dims; i++)
        *(*channels_last ? &p->n_images : &p->n_pixels) *= x->sizes[i];
    return PTAC_TAKE;
}

void ptac_norm_strides(const ptac_view *x, bool channels_last, int64_t *strides)
{
    int64_t stride = 1;

    if (x->n_dims == 4) {
        ptac_image_strides(4, x->sizes, channels_last, strides);
        return;
    }
    for (int d = x->n_dims - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= x->sizes[d] > 1 ? x->sizes[d] : 1;
    }
}

at_error ptac_norm_make_like(const ptac_view *x, bool channels_last, at_tensor *made,
                             ptac_view *view)
{
    int64_t strides[PTAC_MAX_DIMS];

    ptac_norm_strides(x, channels_last, strides);
    return ptac_new(PTAC_F32, x->n_dims, x->sizes, strides, made, view);
}

static ptac_reason read_call(const ptac_chain *chain, PyObject *x, ptac_call *call,
                             ptac_channel_norm *p, bool *channels_last)
{
    ptac_view *view = &call->inputs[PTAC_BATCH_NORM_X];
    ptac_reason why;

    ptac_view_of(ptac_borrow(x), view);
    why = ptac_norm_takes(chain->norm_kind, view->n_dims)
              ? ptac_norm_read_x(view, p, channels_last)
              : PTAC_SHAPE;
    for (int i = 0; !why && i < PTAC_NORM_TENSORS; i++)
        why = ptac_norm_read_channels(chain->norm[i], p->n_channels,
                                      &call->inputs[PTAC_BATCH_NORM_WEIGHT + i]);
    return why;
}

/* Whether a tensor of these sizes that is made now would have x's strides. */
static bool lies_like_new(const ptac_view *x, bool channels_last)
{
    int64_t strides[PTAC_MAX_DIMS];

    ptac_norm_strides(x, channels_last, strides);
    for (int i = 0; i < x->n_dims; i++)
        if (x->strides[i] != strides[i])
            return false;
    return true;
}

static PyObject *run(const ptac_kernel *row, ptac_call *call, PyObject *x,
                     bool is_x_unseen, bool channels_last)
{
    const ptac_view *from = &call->inputs[PTAC_BATCH_NORM_X];
    ptac_view *to = &call->outputs[PTAC_BATCH_NORM_Y];
    const bool in_place = is_x_unseen && lies_like_new(from, channels_last);
    at_tensor made = NULL;
    bool is_done;

    if (in_place)
        *to = *from;
    is_done = PTAC_UNLOCKED(
        (in_place || !ptac_norm_make_like(from, channels_last, &made, to)) &&
        ptac_run(row, call));
    if (is_done)
        return in_place ? Py_NewRef(x) : ptac_wrap(made);
    if (made)
        at_drop_tensor(&made);
    Py_RETURN_NONE; /* a row that fails has written nothing */
}

static PyObject *run_chain(const ptac_chain *chain, const ptac_chain_start *start)
{
    ptac_channel_norm params = {.eps = chain->eps, .act = chain->activation};
    ptac_call call = {
        .op = PTAC_OP_BATCH_NORM_ACT,
        .n_inputs = PTAC_BATCH_NORM_N_INPUTS,
        .n_outputs = 1,
        .params = &params,
    };
    const ptac_kernel *row = NULL;
    bool channels_last = false;
    ptac_reason why = ptac_why_not_lean();

    if (!why)
        why = read_call(chain, start->x, &call, &params, &channels_last);
    if (!why)
        row = ptac_probe(&call, &why);
    if (row)
        return run(row, &call, start->x, start->is_x_unseen, channels_last);
    if (chain->n > 1)
        ptac_refuse(call.op, why); /* the norm alone asks again, and is counted there */
    Py_RETURN_NONE;
}

/* By itself a norm is an operator that an override has, but not in place. */
static PyObject *run_either(const ptac_chain *chain, const ptac_chain_start *start)
{
    int is_constant;

    if (chain->n == 1 && (chain->by_batch || !start->is_x_unseen))
        Py_RETURN_NONE;
    if (chain->by_batch)
        return ptac_norm_chain_training(chain, start->x);
    is_constant = ptac_is_constant(start->x, false);
    if (is_constant <= 0)
        return is_constant < 0 ? NULL : Py_NewRef(Py_None);
    return run_chain(chain, start);
}

PyObject *ptac_norm_chain(const ptac_chain_start *start, Py_ssize_t *n)
{
    PyObject *result;
    ptac_chain chain = {0};

    PTAC_IN_FLIGHT;
    /* A shadow check repeats one operator of stock's. */
    if (ptac_is_off(PTAC_OP_BATCH_NORM_ACT) || ptac_shadow_is_on())
        Py_RETURN_NONE;
    result = ptac_chain_read_norm(start, ACTIVATIONS, &chain)
                 ? run_either(&chain, start)
                 : Py_NewRef(Py_None);
    *n = chain.n;
    ptac_chain_drop(&chain);
    return result;
}
