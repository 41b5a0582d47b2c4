/*
 * layer.c - a layer in one direction, forward and backward, for nodes of Python's.
 */
#include "bind/python/callpath/recurrent/recurrent.h"

PyObject *ptac_wrap_all(at_tensor *made, int n)
{
    PyObject *all = PyTuple_New(n);

    for (int i = 0; i < n; i++) {
        const at_tensor tensor = at_give(&made[i]);
        PyObject *one = tensor ? ptac_wrap(tensor) : Py_NewRef(Py_None);

        if (!one || !all || PyTuple_SetItem(all, i, one)) {
            if (!all)
                Py_XDECREF(one);
            Py_XDECREF(all);
            all = NULL;
        }
    }
    return all;
}

/* A layer's tensors, with None for biases and c0 that are not there. */
static ptac_reason read_tensors(PyObject *const *objects, int n, int n_needed,
                                at_tensor *tensors)
{
    if (!ptac_are_plain(objects, n, n_needed))
        return PTAC_SUBCLASS;
    for (int i = 0; i < n; i++)
        tensors[i] = ptac_borrow_or_null(objects[i]);
    return PTAC_TAKE;
}

static bool run_layer(ptac_op op, bool is_reverse, bool is_cell, at_tensor batch_sizes,
                      const at_tensor *tensors, at_tensor *made)
{
    __attribute__((cleanup(ptac_packed_drop))) ptac_packed packed = {0};
    ptac_recurrent_layer layer;
    ptac_view in[PTAC_RECURRENT_N_INPUTS];
    const ptac_kernel *row;
    ptac_reason why;

    for (int i = 0; i < PTAC_RECURRENT_N_INPUTS; i++) {
        in[i] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (tensors[i])
            ptac_view_of(tensors[i], &in[i]);
    }
    why = ptac_packed_read(batch_sizes, &packed);
    packed.is_cell = is_cell;
    if (!why)
        why = ptac_recurrent_read(op, is_reverse, true, &packed, in, &layer);
    if (why)
        ptac_refuse(op, why);
    row = why ? NULL : ptac_admit(&layer.call);
    if (!row || !ptac_recurrent_run(row, &layer, made))
        return false;
    if (!made[PTAC_RECURRENT_GATES])
        made[PTAC_RECURRENT_GATES] = at_share(made[PTAC_RECURRENT_Y]);
    return true;
}

/*
 * recurrent_layer(op, is_reverse, is_cell, batch_sizes, x, w_ih, w_hh, h0, b_ih, b_hh,
 * c0) -> (y, hn, cn, gates, cells), or None for stock. Only lstm has cn and cells; the
 * gates of rnn are y. x is [steps, rows, numbers], or with batch_sizes [1, rows of all
 * steps, numbers].
 */
PTAC_ARGS(recurrent_layer, 4 + PTAC_RECURRENT_N_INPUTS)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const ptac_op op = ptac_op_from(args[0]);
    at_tensor given[PTAC_RECURRENT_N_INPUTS], batch_sizes;
    ptac_reason why;

    if (op == PTAC_N_OPS)
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    why = read_tensors(args + 3, 1, 0, &batch_sizes);
    if (!why)
        why = read_tensors(args + 4, PTAC_RECURRENT_N_INPUTS, 4, given);
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }

    const at_tensor tensors[PTAC_RECURRENT_N_INPUTS] = {
        given[0], given[1], given[2], given[4], given[5], given[3], given[6],
    };
    const bool is_reverse = args[1] == Py_True, is_cell = args[2] == Py_True;

    if (!PTAC_UNLOCKED(
            run_layer(op, is_reverse, is_cell, batch_sizes, tensors, made.at)))
        Py_RETURN_NONE;
    return ptac_wrap_all(made.at, PTAC_RECURRENT_N_OUTPUTS);
}

enum {
    N_SAVED = 8, /* x, w_ih, w_hh, h0, y, gates, then c0 and cells or None */
    N_FIRST = 5, /* what comes before them */
    N_GRADS = 3,
    N_GRADIENTS = 7,
};

typedef struct gradients {
    at_tensor at[N_GRADIENTS];
} gradients;

static void drop_gradients(gradients *owned)
{
    for (int i = 0; i < N_GRADIENTS; i++)
        at_drop_tensor(&owned->at[i]);
}

static bool run_backward(ptac_recurrent_gradients *g, at_tensor batch_sizes,
                         gradients *made)
{
    __attribute__((cleanup(ptac_packed_drop))) ptac_packed packed = {0};
    bool done;

    if (ptac_packed_read(batch_sizes, &packed))
        return false;
    g->packed = &packed;
    done = ptac_recurrent_backward(g);
    g->packed = NULL;

    const gradients all = {
        {g->of_x, g->of_w_ih, g->of_w_hh, g->of_b_ih, g->of_b_hh, g->of_h0, g->of_c0}};

    *made = all;
    return done;
}

/*
 * recurrent_backward(op, is_reverse, wants_x, wants_w, batch_sizes, x, w_ih, w_hh, h0,
 * y, gates, c0, cells, grad_y, grad_hn, grad_cn) -> gradients of x, w_ih, w_hh, b_ih,
 * b_hh, h0, c0, with None for what is not wanted, or not there (b_hh of lstm, which has
 * b_ih's); or None for stock
 */
PTAC_ARGS(recurrent_backward, N_FIRST + N_SAVED + N_GRADS)
{
    __attribute__((cleanup(drop_gradients))) gradients made = {{NULL}};
    const ptac_op op = ptac_op_from(args[0]);
    const ptac_op backward = ptac_recurrent_backward_of(op);
    at_tensor t[N_SAVED + N_GRADS], batch_sizes;
    ptac_reason why;

    if (op == PTAC_N_OPS)
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(backward))
        Py_RETURN_NONE;
    why = read_tensors(args + 4, 1, 0, &batch_sizes);
    if (!why)
        why = read_tensors(args + N_FIRST, N_SAVED + N_GRADS, 6, t);
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(backward, why);
        Py_RETURN_NONE;
    }

    ptac_recurrent_gradients g = {
        .op = op,
        .is_reverse = args[1] == Py_True,
        .x = t[0],
        .w_ih = t[1],
        .w_hh = t[2],
        .h0 = t[3],
        .y = t[4],
        .gates = t[5],
        .c0 = t[6],
        .cells = t[7],
        .grad_y = t[8],
        .grad_hn = t[9],
        .grad_cn = t[10],
        .wants_x = args[2] == Py_True,
        .wants_w = args[3] == Py_True,
    };

    if (!PTAC_UNLOCKED(run_backward(&g, batch_sizes, &made)))
        Py_RETURN_NONE;
    return ptac_wrap_all(made.at, N_GRADIENTS);
}
