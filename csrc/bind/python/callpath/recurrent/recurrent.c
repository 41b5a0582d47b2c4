/*
 * recurrent.c - the lean call paths to lstm and gru on the CPU.
 *
 * torch.lstm() and torch.gru() are composites, which no override reaches. Where no
 * gradient is wanted, all layers run here; else Python makes a node for each, with what
 * lies between them (pai_torchacc/fusion/recurrent.py). Functions return None where
 * stock has to compute.
 */
#include "bind/python/callpath/recurrent/recurrent.h"

/* All layers as nodes in autograd's graph, or beside stock for shadow checks. */
PTAC_LENT(recurrent_layers)

/* Arguments of torch.lstm() and torch.gru() of a padded sequence, in their order. */
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
    BATCH_SIZES = N_ARGS, /* of a packed one; else None */
    N_ALL,
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

/* A packed sequence's arguments have batch_sizes in second place, no batch_first. */
static void sort_args(PyObject *const *given, PyObject **args)
{
    const bool is_packed = !is_bool(given[HAS_BIASES]);

    args[X] = given[X];
    args[BATCH_SIZES] = is_packed ? given[1] : Py_None;
    for (int i = STATES; i < BATCH_FIRST; i++)
        args[i] = given[i + is_packed];
    args[BATCH_FIRST] = is_packed ? Py_False : given[BATCH_FIRST];
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
    if (!why && args[BATCH_SIZES] != Py_None) {
        at_tensor batch_sizes = NULL;

        why = borrow(args[BATCH_SIZES], &batch_sizes);
        if (!why)
            why = ptac_packed_read(batch_sizes, &q->packed);
    }
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
        name ? PyTuple_Pack(N_ALL + 1, name, args[BATCH_SIZES], args[0], args[1],
                            args[2], args[3], args[4], args[5], args[6], args[7],
                            args[8])
             : NULL;

    return all ? PyObject_CallObject(recurrent_layers, all) : NULL;
}

static PyObject *all_layers(const ptac_recurrent_sequence *q)
{
    AT_OWNED_ALL at_tensors made = {{NULL}};

    if (!PTAC_UNLOCKED(ptac_recurrent_all(q, made.at)))
        Py_RETURN_NONE;
    return ptac_wrap_all(made.at, q->op == PTAC_OP_GRU ? 2 : 3);
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

static void drop_packed(ptac_recurrent_sequence *q)
{
    ptac_packed_drop(&q->packed);
}

static PyObject *try_recurrent(ptac_op op, PyObject *const *given)
{
    AT_OWNED at_tensor h = NULL, c = NULL;
    __attribute__((cleanup(drop_packed))) ptac_recurrent_sequence q = {.op = op};
    PyObject *args[N_ALL];
    int wants = 0, is_hooked = 0;
    bool drops = false;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    sort_args(given, args);
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
