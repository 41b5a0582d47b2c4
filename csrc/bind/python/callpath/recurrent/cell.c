/*
 * cell.c - the lean call paths to lstm_cell and its like on the CPU.
 *
 * A cell is a layer's step: its row is the layer's. Where a gradient is wanted
 * Python makes a node (pai_torchacc/fusion/recurrent.py). Functions return None where
 * stock has to compute.
 */
#include "bind/python/callpath/recurrent/recurrent.h"

#include <string.h>

/* A cell as a node in autograd's graph, or beside stock for shadow checks. */
PTAC_LENT(recurrent_cell)

/* Arguments of torch.lstm_cell() and others, in their order. */
enum {
    X,
    STATES,
    W_IH,
    W_HH,
    B_IH,
    B_HH,
    N_ARGS,
};

/* Borrowed tensors of a cell, and what owns dense copies of its states. */
typedef struct cell {
    ptac_op op;
    at_tensor in[PTAC_RECURRENT_N_INPUTS];
    at_tensor h, c;
    int64_t sizes[3], strides[3]; /* of x as one step */
    ptac_recurrent_layer layer;
} cell;

static void drop_copies(cell *owned)
{
    at_drop_tensor(&owned->h);
    at_drop_tensor(&owned->c);
}

static ptac_reason read_args(PyObject *const *args, cell *cell)
{
    at_tensor *in = cell->in;
    ptac_reason why = ptac_borrow_plain(args[X], &in[PTAC_RECURRENT_X]);

    if (!why)
        why = ptac_borrow_plain(args[W_IH], &in[PTAC_RECURRENT_W_IH]);
    if (!why)
        why = ptac_borrow_plain(args[W_HH], &in[PTAC_RECURRENT_W_HH]);
    if (!why && args[B_IH] != Py_None)
        why = ptac_borrow_plain(args[B_IH], &in[PTAC_RECURRENT_B_IH]);
    if (!why && args[B_HH] != Py_None)
        why = ptac_borrow_plain(args[B_HH], &in[PTAC_RECURRENT_B_HH]);
    if (!why)
        why = ptac_recurrent_states(cell->op, args[STATES], &in[PTAC_RECURRENT_H0],
                                    &in[PTAC_RECURRENT_C0]);
    if (!why)
        why = ptac_why_not_lean();
    if (!why)
        why = ptac_dense_state(&in[PTAC_RECURRENT_H0], &cell->h);
    return why ? why : ptac_dense_state(&in[PTAC_RECURRENT_C0], &cell->c);
}

static ptac_reason read_layer(cell *cell, bool keeps)
{
    static const ptac_packed one_step = {.is_cell = true};
    ptac_view in[PTAC_RECURRENT_N_INPUTS], *x = &in[PTAC_RECURRENT_X];

    for (int i = 0; i < PTAC_RECURRENT_N_INPUTS; i++) {
        in[i] = ptac_absent();
        if (cell->in[i])
            ptac_view_of(cell->in[i], &in[i]);
    }
    if (x->n_dims != 2)
        return PTAC_SHAPE;
    cell->sizes[0] = 1;
    cell->strides[0] = 0;
    for (int d = 0; d < 2; d++) {
        cell->sizes[d + 1] = x->sizes[d];
        cell->strides[d + 1] = x->strides[d];
    }
    x->n_dims = 3;
    x->sizes = cell->sizes;
    x->strides = cell->strides;
    return ptac_recurrent_read(cell->op, false, keeps, &one_step, in, &cell->layer);
}

static int wants_gradient(PyObject *const *args)
{
    int wants = 0;

    if (!T.aoti_torch_grad_mode_is_enabled())
        return 0;
    for (int i = N_ARGS - 1; !wants && i >= W_IH; i--)
        wants = args[i] == Py_None ? 0 : ptac_requires_grad(args[i]);
    if (!wants)
        wants = ptac_requires_grad(args[X]);
    return wants ? wants : ptac_recurrent_wants(args[STATES]);
}

static PyObject *in_python(ptac_op op, PyObject *const *args)
{
    PTAC_OWNED PyObject *name = PyUnicode_FromString(ptac_op_name(op));
    PTAC_OWNED PyObject *all = name ? PyTuple_Pack(N_ARGS + 1, name, args[0], args[1],
                                                   args[2], args[3], args[4], args[5])
                                    : NULL;

    return all ? PyObject_CallObject(recurrent_cell, all) : NULL;
}

static bool run_cell(cell *cell, at_tensor *made)
{
    const ptac_kernel *row = ptac_admit(&cell->layer.call);

    return row && ptac_recurrent_run(row, &cell->layer, made);
}

/* The states; y is the same as h. */
static PyObject *without_gradient(cell *cell)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};

    if (!PTAC_UNLOCKED(run_cell(cell, made.at)))
        Py_RETURN_NONE;
    if (cell->op != PTAC_OP_LSTM)
        return ptac_wrap(at_give(&made.at[PTAC_RECURRENT_HN]));
    return ptac_wrap_all(&made.at[PTAC_RECURRENT_HN], 2);
}

static PyObject *try_cell(ptac_op op, PyObject *const *given)
{
    PTAC_OWNED PyObject *states = NULL;
    PyObject *args[N_ARGS];
    __attribute__((cleanup(drop_copies))) cell cell = {.op = op};
    int wants = 0, goes_on;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    states = ptac_held_items(given[STATES]);
    if (!states)
        return NULL;
    memcpy(args, given, sizeof args);
    args[STATES] = states;
    why = read_args(args, &cell);
    if (!why)
        wants = wants_gradient(args);
    if (!why && wants >= 0)
        why = read_layer(&cell, wants);
    if (!why && wants >= 0)
        ptac_probe(&cell.layer.call, &why);
    goes_on = ptac_recurrent_goes_on(op, why, wants);
    if (goes_on < 0)
        return NULL;
    if (!goes_on)
        Py_RETURN_NONE;
    return wants || ptac_shadow_is_on() ? in_python(op, args) : without_gradient(&cell);
}

/* lstm_cell(the arguments of torch.lstm_cell()) -> (h, c), or None for stock */
PTAC_ARGS(lstm_cell, N_ARGS)
{
    return try_cell(PTAC_OP_LSTM, args);
}

/* gru_cell(the arguments of torch.gru_cell()) -> h, or None for stock */
PTAC_ARGS(gru_cell, N_ARGS)
{
    return try_cell(PTAC_OP_GRU, args);
}

/* rnn_tanh_cell(the arguments of torch.rnn_tanh_cell()) -> h, or None for stock */
PTAC_ARGS(rnn_tanh_cell, N_ARGS)
{
    return try_cell(PTAC_OP_RNN_TANH, args);
}

/* rnn_relu_cell(the arguments of torch.rnn_relu_cell()) -> h, or None for stock */
PTAC_ARGS(rnn_relu_cell, N_ARGS)
{
    return try_cell(PTAC_OP_RNN_RELU, args);
}
