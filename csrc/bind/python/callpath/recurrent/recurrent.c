/*
 * recurrent.c - the lean call paths to lstm and gru on the CPU.
 *
 * torch.lstm() and torch.gru() are composites, which no override reaches. Where no
 * gradient is wanted, all layers run here; else Python makes a node for each, with what
 * lies between them (pai_torchacc/fusion/recurrent.py). Functions return None where
 * stock has to compute.
 */
#include "bind/python/callpath/lean.h"
#include "bind/torch/rows/recurrent/layers.h"

/* All layers as nodes in autograd's graph, or beside stock for shadow checks. */
PTAC_LENT(recurrent_layers)

/* Arguments of torch.lstm() and torch.gru(), in their order. */
enum {
    X,
    STATES,
    PARAMS,
    HAS_BIASES,
    N_LAYERS,
    DROPOUT,
    TRAIN,
    BIDIRECTIONAL,
    BATCH_FIRST,
    N_ARGS,
};

static bool is_bool(PyObject *object)
{
    return object == Py_True || object == Py_False;
}

/* Item i of a list or tuple, borrowed; NULL of anything else. */
static PyObject *item(PyObject *items, Py_ssize_t i)
{
    if (PyList_CheckExact(items))
        return i < PyList_Size(items) ? PyList_GetItem(items, i) : NULL;
    if (PyTuple_CheckExact(items))
        return i < PyTuple_Size(items) ? PyTuple_GetItem(items, i) : NULL;
    return NULL;
}

static Py_ssize_t n_items(PyObject *items)
{
    if (PyList_CheckExact(items))
        return PyList_Size(items);
    return PyTuple_CheckExact(items) ? PyTuple_Size(items) : -1;
}

static ptac_reason borrow(PyObject *object, at_tensor *tensor)
{
    if (!object)
        return PTAC_ARGUMENT;
    if (!ptac_is_plain(object))
        return ptac_why_not_plain(object);
    *tensor = ptac_borrow(object);
    return PTAC_TAKE;
}

static ptac_reason read_states(PyObject *states, ptac_recurrent_sequence *q)
{
    ptac_reason why;

    q->c = NULL;
    if (q->op == PTAC_OP_GRU)
        return borrow(states, &q->h);
    if (n_items(states) != 2)
        return PTAC_ARGUMENT;
    why = borrow(item(states, 0), &q->h);
    return why ? why : borrow(item(states, 1), &q->c);
}

static ptac_reason read_params(PyObject *const *args, ptac_recurrent_sequence *q)
{
    const int n = args[HAS_BIASES] == Py_True ? 4 : 2;
    const int n_parts = q->n_layers * q->n_directions;
    ptac_reason why = PTAC_TAKE;

    if (n_items(args[PARAMS]) != n_parts * n)
        return PTAC_ARGUMENT; /* with projections there are more */
    for (int i = 0; !why && i < n_parts; i++) {
        ptac_recurrent_weights *w = &q->weights[i];
        at_tensor *const to[4] = {&w->w_ih, &w->w_hh, &w->b_ih, &w->b_hh};

        for (int j = 0; !why && j < 4; j++) {
            *to[j] = NULL;
            if (j < n)
                why = borrow(item(args[PARAMS], i * n + j), to[j]);
        }
    }
    return why;
}

/* PTAC_TAKE with *q filled, or why stock has to see these arguments. */
static ptac_reason read_args(PyObject *const *args, ptac_recurrent_sequence *q)
{
    long n_layers;
    ptac_reason why;

    for (int i = TRAIN; i <= BATCH_FIRST; i++)
        if (!is_bool(args[i]))
            return PTAC_ARGUMENT;
    if (!is_bool(args[HAS_BIASES]) || !PyLong_CheckExact(args[N_LAYERS]))
        return PTAC_ARGUMENT;
    n_layers = PyLong_AsLong(args[N_LAYERS]);
    q->n_directions = args[BIDIRECTIONAL] == Py_True ? 2 : 1;
    q->is_batch_first = args[BATCH_FIRST] == Py_True;
    if (PyErr_Occurred() || n_layers < 1 ||
        n_layers > PTAC_RECURRENT_MOST_PARTS / q->n_directions)
        return PTAC_ARGUMENT;
    q->n_layers = (int)n_layers;
    why = borrow(args[X], &q->x);
    if (!why)
        why = read_states(args[STATES], q);
    return why ? why : read_params(args, q);
}

/* What is dropped between layers is drawn in Python. */
static ptac_reason read_dropout(PyObject *const *args, const ptac_recurrent_sequence *q,
                                bool *drops)
{
    double p = 0;

    if (PyFloat_CheckExact(args[DROPOUT]))
        p = PyFloat_AsDouble(args[DROPOUT]);
    else if (PyLong_CheckExact(args[DROPOUT]))
        p = PyLong_AsDouble(args[DROPOUT]);
    else
        return PTAC_ARGUMENT;
    *drops = p != 0 && args[TRAIN] == Py_True && q->n_layers > 1;
    return p >= 0 && p <= 1 ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* Parameters first: they usually want one. */
static int wants_gradient(PyObject *const *args)
{
    const Py_ssize_t n = n_items(args[PARAMS]);
    int wants = 0;

    if (!T.aoti_torch_grad_mode_is_enabled())
        return 0;
    for (Py_ssize_t i = 0; !wants && i < n; i++)
        wants = ptac_requires_grad(item(args[PARAMS], i));
    if (!wants)
        wants = ptac_requires_grad(args[X]);
    if (!wants && n_items(args[STATES]) < 0)
        wants = ptac_requires_grad(args[STATES]);
    for (Py_ssize_t i = 0; !wants && i < n_items(args[STATES]); i++)
        wants = ptac_requires_grad(item(args[STATES], i));
    return wants;
}

static PyObject *in_python(ptac_op op, PyObject *const *args)
{
    PTAC_OWNED PyObject *name = PyUnicode_FromString(ptac_op_name(op));
    PTAC_OWNED PyObject *all =
        name ? PyTuple_Pack(N_ARGS + 1, name, args[0], args[1], args[2], args[3],
                            args[4], args[5], args[6], args[7], args[8])
             : NULL;

    return all ? PyObject_CallObject(recurrent_layers, all) : NULL;
}

/* n owned tensors as a tuple, None for those that are not there; all are taken over. */
static PyObject *wrap_all(at_tensor *made, int n)
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

static PyObject *all_layers(const ptac_recurrent_sequence *q)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};

    if (!PTAC_UNLOCKED(ptac_recurrent_all(q, made.at)))
        Py_RETURN_NONE;
    return wrap_all(made.at, q->op == PTAC_OP_GRU ? 2 : 3);
}

/* States may be expanded, or views with gaps: they are small, and a copy is made. */
static ptac_reason make_dense(at_tensor *state, at_tensor *copy)
{
    ptac_view view;

    if (!*state)
        return PTAC_TAKE;
    ptac_view_of(*state, &view);
    if (ptac_view_is_contiguous(&view))
        return PTAC_TAKE;
    if (at_contiguous(at_share(*state), false, copy))
        return PTAC_MEMORY;
    *state = *copy;
    return PTAC_TAKE;
}

static PyObject *try_recurrent(ptac_op op, PyObject *const *args)
{
    AT_OWNED at_tensor h = NULL, c = NULL;
    ptac_recurrent_sequence q = {.op = op};
    int wants = 0, is_hooked = 0;
    bool drops = false;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    why = read_args(args, &q);
    if (!why)
        why = read_dropout(args, &q, &drops);
    if (!why)
        why = make_dense(&q.h, &h);
    if (!why)
        why = make_dense(&q.c, &c);
    if (!why)
        wants = wants_gradient(args);
    if (!why && wants >= 0)
        why = ptac_recurrent_probe(&q, wants);
    if (!why)
        why = ptac_why_not_lean();
    if (!why && wants > 0)
        is_hooked = ptac_saving_is_hooked();
    if (wants < 0 || is_hooked < 0 || PyErr_Occurred())
        return NULL;
    if (is_hooked)
        why = PTAC_HOOKS;
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }
    return wants || drops || ptac_shadow_is_on() ? in_python(op, args) : all_layers(&q);
}

/* lstm(the arguments of torch.lstm()) -> (y, h, c), or None for stock */
PTAC_ARGS(lstm, N_ARGS)
{
    return try_recurrent(PTAC_OP_LSTM, args);
}

/* gru(the arguments of torch.gru()) -> (y, h), or None for stock */
PTAC_ARGS(gru, N_ARGS)
{
    return try_recurrent(PTAC_OP_GRU, args);
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

static bool run_layer(ptac_op op, bool is_reverse, bool keeps, const at_tensor *tensors,
                      at_tensor *made)
{
    ptac_recurrent_layer layer;
    ptac_view in[PTAC_RECURRENT_N_INPUTS];
    const ptac_kernel *row;
    ptac_reason why;

    for (int i = 0; i < PTAC_RECURRENT_N_INPUTS; i++) {
        in[i] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (tensors[i])
            ptac_view_of(tensors[i], &in[i]);
    }
    why = ptac_recurrent_read(op, is_reverse, keeps, in, &layer);
    if (why)
        ptac_refuse(op, why);
    row = why ? NULL : ptac_admit(&layer.call);
    return row && ptac_recurrent_run(row, &layer, made);
}

/*
 * recurrent_layer(op, is_reverse, keeps, x, w_ih, w_hh, h0, b_ih, b_hh, c0) -> (y, hn,
 * cn, gates, cells), the last two None unless it keeps them, cn and cells None of gru;
 * or None for stock. x is [steps, rows, numbers].
 */
PTAC_ARGS(recurrent_layer, 3 + PTAC_RECURRENT_N_INPUTS)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};
    const ptac_op op = ptac_op_from(args[0]);
    at_tensor given[PTAC_RECURRENT_N_INPUTS];
    ptac_reason why;

    if (op == PTAC_N_OPS)
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    why = read_tensors(args + 3, PTAC_RECURRENT_N_INPUTS, 4, given);
    if (why) {
        ptac_refuse(op, why);
        Py_RETURN_NONE;
    }

    const at_tensor tensors[PTAC_RECURRENT_N_INPUTS] = {
        given[0], given[1], given[2], given[4], given[5], given[3], given[6],
    };
    const bool is_reverse = args[1] == Py_True, keeps = args[2] == Py_True;

    if (!PTAC_UNLOCKED(run_layer(op, is_reverse, keeps, tensors, made.at)))
        Py_RETURN_NONE;
    return wrap_all(made.at, PTAC_RECURRENT_N_OUTPUTS);
}

enum {
    N_SAVED = 8, /* x, w_ih, w_hh, h0, y, gates, then c0 and cells or None */
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

static bool run_backward(ptac_recurrent_gradients *g, gradients *made)
{
    const bool done = ptac_recurrent_backward(g);
    const gradients all = {
        {g->of_x, g->of_w_ih, g->of_w_hh, g->of_b_ih, g->of_b_hh, g->of_h0, g->of_c0}};

    *made = all;
    return done;
}

/*
 * recurrent_backward(op, is_reverse, wants_x, wants_w, x, w_ih, w_hh, h0, y, gates, c0,
 * cells, grad_y, grad_hn, grad_cn) -> gradients of x, w_ih, w_hh, b_ih, b_hh, h0, c0,
 * with None for what is not wanted, or not there (b_hh of lstm, which has b_ih's); or
 * None for stock
 */
PTAC_ARGS(recurrent_backward, 4 + N_SAVED + N_GRADS)
{
    __attribute__((cleanup(drop_gradients))) gradients made = {{NULL}};
    const ptac_op op = ptac_op_from(args[0]);
    const ptac_op backward =
        op == PTAC_OP_GRU ? PTAC_OP_GRU_BACKWARD : PTAC_OP_LSTM_BACKWARD;
    at_tensor t[N_SAVED + N_GRADS];
    ptac_reason why;

    if (op == PTAC_N_OPS)
        return NULL;
    PTAC_IN_FLIGHT;
    if (ptac_is_off(backward))
        Py_RETURN_NONE;
    why = read_tensors(args + 4, N_SAVED + N_GRADS, 6, t);
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

    if (!PTAC_UNLOCKED(run_backward(&g, &made)))
        Py_RETURN_NONE;
    return wrap_all(made.at, N_GRADIENTS);
}
