/*
 * recurrent.c - the lean call paths to lstm, gru, rnn_tanh and rnn_relu on the CPU.
 *
 * torch.lstm() and others are composites, which no override reaches. Where no
 * gradient is wanted, all layers run here; else Python makes a node for each, with what
 * lies between them (pai_torchacc/fusion/recurrent.py). Functions return None where
 * stock has to compute.
 */
#include "bind/python/callpath/recurrent/recurrent.h"

/* All layers as nodes in autograd's graph, or beside stock for shadow checks. */
PTAC_LENT(recurrent_layers)

/* Arguments of torch.lstm() and others of a padded sequence, in their order. */
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

static ptac_reason view_plain(PyObject *object, ptac_view *view)
{
    at_tensor tensor = NULL;
    const ptac_reason why = ptac_borrow_plain(object, &tensor);

    if (!why)
        ptac_view_of(tensor, view);
    return why;
}

static ptac_reason read_params(PyObject *const *args, ptac_recurrent_sequence *q)
{
    const int n = args[HAS_BIASES] == Py_True ? 4 : 2;
    const int n_parts = q->n_layers * q->n_directions;
    ptac_reason why = PTAC_TAKE;

    if (ptac_n_items(args[PARAMS]) != n_parts * n)
        return PTAC_ARGUMENT; /* with projections there are more */
    for (int i = 0; !why && i < n_parts; i++) {
        ptac_recurrent_weights *w = &q->weights[i];
        ptac_view *const to[4] = {&w->w_ih, &w->w_hh, &w->b_ih, &w->b_hh};

        for (int j = 0; !why && j < 4; j++) {
            *to[j] = ptac_absent();
            if (j < n)
                why = view_plain(ptac_item(args[PARAMS], i * n + j), to[j]);
        }
    }
    return why;
}

/* States as they are given, or copies without gaps, which are owned. */
typedef struct dense_states {
    at_tensor h, c, h_copy, c_copy;
} dense_states;

static void drop_states(dense_states *states)
{
    at_drop_tensor(&states->h_copy);
    at_drop_tensor(&states->c_copy);
}

/* Where copies may be made: nobody watches operators. */
static ptac_reason view_states(ptac_recurrent_sequence *q, dense_states *s)
{
    ptac_reason why = ptac_dense_state(&s->h, &s->h_copy);

    if (!why)
        why = ptac_dense_state(&s->c, &s->c_copy);
    if (why)
        return why;
    ptac_view_of(s->h, &q->h);
    if (s->c)
        ptac_view_of(s->c, &q->c);
    return PTAC_TAKE;
}

/* PTAC_TAKE with *q filled, or why stock has to see these arguments. */
static ptac_reason read_args(PyObject *const *args, ptac_recurrent_sequence *q,
                             dense_states *states)
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
    why = view_plain(args[X], &q->x);
    if (!why && args[BATCH_SIZES] != Py_None) {
        at_tensor batch_sizes = NULL;

        why = ptac_borrow_plain(args[BATCH_SIZES], &batch_sizes);
        if (!why)
            why = ptac_packed_read(batch_sizes, &q->packed);
    }
    if (!why)
        why = ptac_recurrent_states(q->op, args[STATES], &states->h, &states->c);
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
    const Py_ssize_t n = ptac_n_items(args[PARAMS]);
    int wants = 0;

    if (!T.aoti_torch_grad_mode_is_enabled())
        return 0;
    for (Py_ssize_t i = 0; !wants && i < n; i++)
        wants = ptac_requires_grad(ptac_item(args[PARAMS], i));
    if (!wants)
        wants = ptac_requires_grad(args[X]);
    return wants ? wants : ptac_recurrent_wants(args[STATES]);
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
    return ptac_wrap_all(made.at, q->op == PTAC_OP_LSTM ? 3 : 2);
}

static void drop_packed(ptac_recurrent_sequence *q)
{
    ptac_packed_drop(&q->packed);
}

static PyObject *try_recurrent(ptac_op op, PyObject *const *given)
{
    __attribute__((cleanup(drop_states))) dense_states dense = {NULL};
    __attribute__((cleanup(drop_packed)))
    ptac_recurrent_sequence q = {.op = op, .h = ptac_absent(), .c = ptac_absent()};
    PTAC_OWNED PyObject *states = NULL, *params = NULL;
    PyObject *args[N_ALL];
    int wants = 0, goes_on;
    bool drops = false;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(op))
        Py_RETURN_NONE;
    sort_args(given, args);
    states = ptac_held_items(args[STATES]);
    params = ptac_held_items(args[PARAMS]);
    if (!states || !params)
        return NULL;
    args[STATES] = states;
    args[PARAMS] = params;
    why = read_args(args, &q, &dense);
    if (!why)
        why = read_dropout(args, &q, &drops);
    if (!why)
        why = ptac_why_not_lean();
    if (!why)
        why = view_states(&q, &dense);
    if (!why)
        wants = wants_gradient(args);
    if (!why && wants >= 0)
        why = ptac_recurrent_probe(&q, wants, NULL);
    goes_on = ptac_recurrent_goes_on(op, why, wants);
    if (goes_on < 0)
        return NULL;
    if (!goes_on)
        Py_RETURN_NONE;
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

/* rnn_tanh(the arguments of torch.rnn_tanh()) -> (y, h), or None for stock */
PTAC_ARGS(rnn_tanh, N_ARGS)
{
    return try_recurrent(PTAC_OP_RNN_TANH, args);
}

/* rnn_relu(the arguments of torch.rnn_relu()) -> (y, h), or None for stock */
PTAC_ARGS(rnn_relu, N_ARGS)
{
    return try_recurrent(PTAC_OP_RNN_RELU, args);
}
