/*
 * norm_chain_training.c - a BatchNorm by the statistics of the batch and the activation
 * behind it, run as one batch_norm_act with one gradient.
 *
 * The row has run before there is a node: where it fails, the modules are called, and
 * nothing of them has changed. The node keeps x, the weight, and what the row says of
 * channels; its gradient follows the row, and asks no table.
 */
#include "bind/python/callpath/norm/norm_chain.h"

#include "bind/python/callpath/lean.h"

#include <math.h>

PTAC_LENT(norm_act_nodes) /* how to apply them, a tuple in the order of ptac_act */

/* The lines of the tensor of numbers a channel that a node keeps. */
enum { MEAN, RSTD, SCALE, SHIFT, N_NUMBERS };

/* One line of it, by the tensor's view, which has to stay. */
static ptac_view line_of(const ptac_view *numbers, int line)
{
    return (ptac_view){
        .data = (float *)numbers->data + line * numbers->sizes[1],
        .sizes = &numbers->sizes[1],
        .strides = &numbers->strides[1],
        .n_elements = numbers->sizes[1],
        .n_dims = 1,
        .dtype = PTAC_F32,
    };
}

/* How many batches there were: a plain int64 that counts its versions. */
static bool is_count(PyObject *n_batches)
{
    ptac_view view;

    if (n_batches == Py_None)
        return true;
    if (!ptac_is_plain_and_versioned(n_batches))
        return false;
    ptac_view_of(ptac_borrow(n_batches), &view);
    return view.dtype == PTAC_I64 && view.n_elements == 1;
}

static void count_batch(PyObject *n_batches)
{
    if (n_batches == Py_None)
        return;
    *(int64_t *)at_data(ptac_borrow(n_batches)) += 1;
    ptac_bump_version(n_batches);
}

/* The share of this batch in the running statistics; false where torch raises. */
static bool find_momentum(const ptac_chain *chain, double *momentum)
{
    int64_t n = -1;

    *momentum = chain->momentum;
    if (!isnan(chain->momentum))
        return true;
    if (chain->n_batches != Py_None)
        n = *(const int64_t *)at_data(ptac_borrow(chain->n_batches));
    *momentum = chain->n_batches == Py_None ? 0 : 1 / ((double)n + 1);
    return chain->n_batches == Py_None || n != -1;
}

static bool may_be_kept(PyObject *tensor)
{
    return tensor == Py_None || ptac_is_plain_and_versioned(tensor);
}

/* Whether x, weight or bias asks for a gradient; -1 with an exception set. */
static int wants_gradient(const ptac_chain *chain, PyObject *x)
{
    PyObject *const tensors[] = {chain->norm[PTAC_NORM_WEIGHT], x,
                                 chain->norm[PTAC_NORM_BIAS]};
    int wants = 0;

    if (T.aoti_torch_grad_mode_is_enabled())
        for (int i = 0; i < 3 && wants == 0; i++)
            if (tensors[i] != Py_None)
                wants = ptac_requires_grad(tensors[i]);
    return wants;
}

/* Running statistics are plain and constant, and where one is, the other is too. */
static bool are_statistics(const ptac_chain *chain)
{
    PyObject *mean = chain->norm[PTAC_NORM_MEAN],
             *variance = chain->norm[PTAC_NORM_VARIANCE];

    return (mean == Py_None) == (variance == Py_None) &&
           ptac_is_constant(mean, true) > 0 && ptac_is_constant(variance, true) > 0;
}

static ptac_reason read_call(const ptac_chain *chain, PyObject *x, ptac_call *call,
                             ptac_channel_norm *p, bool *channels_last)
{
    ptac_view *view = &call->inputs[PTAC_BATCH_NORM_X];
    ptac_reason why;

    if (!may_be_kept(x) || !may_be_kept(chain->norm[PTAC_NORM_WEIGHT]) ||
        !may_be_kept(chain->norm[PTAC_NORM_BIAS]))
        return PTAC_SUBCLASS;
    if (!are_statistics(chain) || !is_count(chain->n_batches) ||
        !find_momentum(chain, &p->momentum))
        return PTAC_ARGUMENT;
    ptac_view_of(ptac_borrow(x), view);
    why = ptac_norm_takes(chain->norm_kind, view->n_dims)
              ? ptac_norm_read_x(view, p, channels_last)
              : PTAC_SHAPE;
    for (int i = 0; !why && i < PTAC_NORM_TENSORS; i++)
        why = ptac_norm_read_channels(chain->norm[i], p->n_channels,
                                      &call->inputs[PTAC_BATCH_NORM_WEIGHT + i]);
    return why;
}

/* The row that serves the call and its gradient; NULL where either is stock's. */
static const ptac_kernel *choose(ptac_call *call, ptac_reason *why)
{
    const ptac_op backward = PTAC_OP_BATCH_NORM_ACT_BACKWARD;
    const ptac_kernel *row, *gradient;

    *why = ptac_chooser_gate(backward);
    row = *why ? NULL : ptac_probe(call, why);
    if (!row)
        return NULL;
    gradient = ptac_registry_find(backward, row->name);
    if (gradient && !ptac_chooser_is_quarantined(gradient))
        return row;
    *why = PTAC_QUARANTINED;
    ptac_refuse(backward, *why);
    return NULL;
}

/* y, and the numbers of channels. */
typedef struct outputs {
    at_tensor y, numbers;
} outputs;

static void drop_outputs(outputs *made)
{
    if (made->y)
        at_drop_tensor(&made->y);
    if (made->numbers)
        at_drop_tensor(&made->numbers);
}

/* New running statistics go where the old ones are, as stock's do. */
static bool compute(const ptac_kernel *row, ptac_call *call, bool channels_last,
                    outputs *made)
{
    const ptac_view *x = &call->inputs[PTAC_BATCH_NORM_X];
    const int64_t sizes[] = {N_NUMBERS, x->sizes[1]};
    ptac_view numbers, *out = call->outputs;

    if (ptac_norm_make_like(x, channels_last, &made->y, &out[PTAC_BATCH_NORM_Y]) ||
        ptac_new(PTAC_F32, 2, sizes, NULL, &made->numbers, &numbers))
        return false;
    out[PTAC_BATCH_NORM_MEAN] = line_of(&numbers, MEAN);
    out[PTAC_BATCH_NORM_RSTD] = line_of(&numbers, RSTD);
    out[PTAC_BATCH_NORM_SCALE] = line_of(&numbers, SCALE);
    out[PTAC_BATCH_NORM_SHIFT] = line_of(&numbers, SHIFT);
    out[PTAC_BATCH_NORM_NEW_MEAN] = call->inputs[PTAC_BATCH_NORM_RUNNING_MEAN];
    out[PTAC_BATCH_NORM_NEW_VAR] = call->inputs[PTAC_BATCH_NORM_RUNNING_VAR];
    return ptac_run(row, call);
}

/* By way of the node: apply(x, weight, bias, (y, numbers), activation, row, eps). */
static PyObject *make_node(const ptac_chain *chain, PyObject *x, const char *row,
                           outputs *made)
{
    PTAC_OWNED PyObject *y = ptac_wrap(at_give(&made->y));
    PTAC_OWNED PyObject *numbers = ptac_wrap(at_give(&made->numbers));
    PTAC_OWNED PyObject *args =
        y && numbers ? Py_BuildValue("(OOO(OO)isd)", x, chain->norm[PTAC_NORM_WEIGHT],
                                     chain->norm[PTAC_NORM_BIAS], y, numbers,
                                     (int)chain->activation, row, chain->eps)
                     : NULL;

    return ptac_node_make(PyTuple_GetItem(norm_act_nodes, chain->activation), args);
}

static PyObject *run(const ptac_chain *chain, PyObject *x)
{
    __attribute__((cleanup(drop_outputs))) outputs made = {NULL};
    ptac_channel_norm params = {
        .eps = chain->eps,
        .by_batch = true,
        .act = chain->activation,
    };
    ptac_call call = {
        .op = PTAC_OP_BATCH_NORM_ACT,
        .n_inputs = PTAC_BATCH_NORM_N_INPUTS,
        .n_outputs = PTAC_BATCH_NORM_ACT_N_OUTPUTS,
        .params = &params,
    };
    const ptac_kernel *row = NULL;
    bool channels_last;
    ptac_reason why = read_call(chain, x, &call, &params, &channels_last);

    if (!why)
        row = choose(&call, &why);
    if (!row)
        ptac_refuse(call.op, why);
    if (!row || !PTAC_UNLOCKED(compute(row, &call, channels_last, &made)))
        Py_RETURN_NONE;
    count_batch(chain->n_batches);
    return make_node(chain, x, row->name, &made);
}

PyObject *ptac_norm_chain_training(const ptac_chain *chain, PyObject *x)
{
    const ptac_op op = PTAC_OP_BATCH_NORM_ACT;
    ptac_reason why = ptac_is_plain(x) ? ptac_why_not_lean() : PTAC_SUBCLASS;
    int wants, is_hooked;

    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    wants = wants_gradient(chain, x);
    if (wants <= 0)
        return wants < 0 ? NULL : Py_NewRef(Py_None);
    is_hooked = ptac_saving_is_hooked();
    if (is_hooked == 0)
        return run(chain, x);
    if (is_hooked < 0)
        return NULL;
    ptac_refuse(op, PTAC_HOOKS);
    Py_RETURN_NONE;
}

/* What a gradient is computed of; tensors may have other data by now, of any kind. */
static ptac_reason read_gradient(PyObject *const tensors[4], ptac_call *call,
                                 ptac_channel_norm *p, bool *channels_last)
{
    ptac_view *grad = &call->inputs[PTAC_BATCH_NORM_GRAD_Y],
              *x = &call->inputs[PTAC_BATCH_NORM_GRAD_X_OF], numbers;
    ptac_reason why;

    ptac_view_of(ptac_borrow(tensors[0]), grad);
    ptac_view_of(ptac_borrow(tensors[1]), x);
    ptac_view_of(ptac_borrow(tensors[2]), &numbers);
    if (grad->dtype != PTAC_F32 || x->dtype != PTAC_F32 || numbers.dtype != PTAC_F32)
        return PTAC_DTYPE;
    why = ptac_norm_read_x(x, p, channels_last);
    if (why)
        return why;
    if (x->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_view_has_sizes(grad, x->n_dims, x->sizes) || numbers.n_dims != 2 ||
        numbers.sizes[0] != N_NUMBERS || numbers.sizes[1] != p->n_channels ||
        !ptac_view_is_contiguous(&numbers))
        return PTAC_ARGUMENT;
    call->inputs[PTAC_BATCH_NORM_GRAD_MEAN] = line_of(&numbers, MEAN);
    call->inputs[PTAC_BATCH_NORM_GRAD_RSTD] = line_of(&numbers, RSTD);
    call->inputs[PTAC_BATCH_NORM_GRAD_SCALE] = line_of(&numbers, SCALE);
    call->inputs[PTAC_BATCH_NORM_GRAD_SHIFT] = line_of(&numbers, SHIFT);
    return ptac_norm_read_channels(tensors[3], p->n_channels,
                                   &call->inputs[PTAC_BATCH_NORM_GRAD_WEIGHT_OF]);
}

/* The gradient of y as x lies, a copy where it lies otherwise. */
static at_error make_dense(at_tensor grad, bool channels_last, ptac_view *view,
                           at_tensor *dense)
{
    at_tensor given = NULL;

    if (channels_last ? ptac_view_is_channels_last(view)
                      : ptac_view_is_contiguous(view))
        return 0;
    if (T.aoti_torch_new_tensor_handle(grad, &given) ||
        at_contiguous(given, channels_last, dense))
        return 1;
    ptac_view_of(*dense, view);
    return 0;
}

/*
 * The gradients that are asked for; false where stock has to compute them. Where x lies
 * in either format, as with one pixel, its gradient has strides as stock's: forward
 * goes by the first that fits, backward by what the strides look like.
 */
static bool compute_gradients(const ptac_kernel *row, ptac_call *call, at_tensor grad,
                              bool channels_last, const bool wants[3], at_tensors *made)
{
    const ptac_view *x = &call->inputs[PTAC_BATCH_NORM_GRAD_X_OF];
    const bool is_last = ptac_view_suggests_channels_last(x);
    ptac_view *out = call->outputs;
    AT_OWNED at_tensor dense = NULL;

    if (make_dense(grad, channels_last, &call->inputs[PTAC_BATCH_NORM_GRAD_Y], &dense))
        return false;
    if (wants[0] &&
        ptac_norm_make_like(x, is_last, &made->at[0], &out[PTAC_BATCH_NORM_GRAD_X]))
        return false;
    for (int i = 1; i < 3; i++)
        if (wants[i] && ptac_new(PTAC_F32, 1, &x->sizes[1], NULL, &made->at[i],
                                 &out[PTAC_BATCH_NORM_GRAD_X + i]))
            return false;
    return ptac_run(row, call);
}

static PyObject *wrap_or_none(at_tensor *owned)
{
    return *owned ? ptac_wrap(at_give(owned)) : Py_NewRef(Py_None);
}

/*
 * batch_norm_act_backward(row, activation, grad, x, numbers, weight, wants) -> (of x,
 * of weight, of bias), or None for stock. The weight may be None; wants is three bools.
 */
PTAC_ARGS(batch_norm_act_backward, 7)
{
    const ptac_op op = PTAC_OP_BATCH_NORM_ACT_BACKWARD;
    AT_OWNED_ALL at_tensors made = {{NULL}};
    ptac_channel_norm params = {.by_batch = true};
    ptac_call call = {
        .op = op,
        .n_inputs = PTAC_BATCH_NORM_ACT_GRAD_N_INPUTS,
        .n_outputs = PTAC_BATCH_NORM_GRAD_N_OUTPUTS,
        .params = &params,
    };
    const char *row_name = PyUnicode_AsUTF8AndSize(args[0], NULL);
    const long act = PyLong_AsLong(args[1]);
    const ptac_kernel *row = NULL;
    bool channels_last = false, wants[3];
    ptac_reason why;

    if (!row_name || (act == -1 && PyErr_Occurred()))
        return NULL;
    if (!PyTuple_Check(args[6]) || PyTuple_Size(args[6]) != 3)
        return PyErr_Format(PyExc_TypeError, "wants are three bools");
    for (int i = 0; i < 3; i++)
        wants[i] = PyTuple_GetItem(args[6], i) == Py_True;
    params.act = (ptac_act)act;
    if (!ptac_act_is_behind_norm(params.act))
        return PyErr_Format(PyExc_ValueError, "no such activation");
    PTAC_IN_FLIGHT;
    why = ptac_are_plain(&args[2], 4, 3) ? PTAC_TAKE : PTAC_SUBCLASS;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (!why)
        why = read_gradient(&args[2], &call, &params, &channels_last);
    if (why)
        ptac_refuse(op, why);
    else
        row = ptac_admit_row(&call, row_name);
    if (!row || !PTAC_UNLOCKED(compute_gradients(row, &call, ptac_borrow(args[2]),
                                                 channels_last, wants, &made)))
        Py_RETURN_NONE;
    return Py_BuildValue("(NNN)", wrap_or_none(&made.at[0]), wrap_or_none(&made.at[1]),
                         wrap_or_none(&made.at[2]));
}
