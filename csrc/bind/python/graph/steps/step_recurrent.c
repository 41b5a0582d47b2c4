/*
 * step_recurrent.c - steps that run all layers of an LSTM, a GRU or an RNN over a
 * padded sequence.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/rows/recurrent/layers.h"

#include <stdlib.h>
#include <string.h>

enum {
    X,
    H,
    C,
    N_TENSORS,

    Y = 0, /* then the last h and c */
    MOST_RESULTS = 3,
    MOST_WEIGHTS = 4, /* of a part: w_ih, w_hh and biases, if there are any */
};

typedef struct recurrent_step {
    ptac_step step;
    ptac_recurrent_sequence sequence;
    int n_parts, n_weights; /* of a part */
    int inputs[N_TENSORS];  /* C: -1 where there is none */
    int weights[PTAC_RECURRENT_MOST_PARTS][MOST_WEIGHTS];
    int outputs[MOST_RESULTS];
    ptac_recurrent_kept kept[PTAC_RECURRENT_MOST_PARTS];
} recurrent_step;

static void drop(ptac_step *step)
{
    recurrent_step *s = (recurrent_step *)step;

    for (int i = 0; i < PTAC_RECURRENT_MOST_PARTS; i++)
        free(s->kept[i].kept.data);
    PyMem_Free(s->step.ends);
    PyMem_Free(s);
}

static ptac_view *weight_view(recurrent_step *s, int part, int i)
{
    ptac_recurrent_weights *w = &s->sequence.weights[part];
    ptac_view *const views[MOST_WEIGHTS] = {&w->w_ih, &w->w_hh, &w->b_ih, &w->b_hh};

    return views[i];
}

static void find_data(ptac_plan *plan, recurrent_step *s)
{
    ptac_view *const views[N_TENSORS] = {&s->sequence.x, &s->sequence.h,
                                         &s->sequence.c};

    for (int i = 0; i < N_TENSORS; i++)
        if (s->inputs[i] >= 0)
            views[i]->data = ptac_value_data(plan, s->inputs[i]);
    for (int part = 0; part < s->n_parts; part++)
        for (int i = 0; i < s->n_weights; i++)
            weight_view(s, part, i)->data = ptac_value_data(plan, s->weights[part][i]);
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    recurrent_step *s = (recurrent_step *)step;
    AT_OWNED_ALL at_tensors made = {{NULL}};
    bool is_done;

    find_data(plan, s);
    is_done = PTAC_UNLOCKED(ptac_recurrent_all(&s->sequence, made.at));
    s->sequence.may_keep = false;
    for (int i = 0; is_done && i < MOST_RESULTS; i++)
        if (s->outputs[i] >= 0)
            is_done = ptac_value_take(plan, s->outputs[i], at_give(&made.at[i]));
    return is_done;
}

/* (x, h, c or None), and each part's weights behind one another. */
static bool read_values(ptac_plan *plan, PyObject *tensors, PyObject *weights,
                        recurrent_step *s)
{
    const int n = s->n_parts * s->n_weights;
    int numbers[PTAC_RECURRENT_MOST_PARTS * MOST_WEIGHTS];
    ptac_view *const views[N_TENSORS] = {&s->sequence.x, &s->sequence.h,
                                         &s->sequence.c};

    if (!PyTuple_Check(weights) || PyTuple_Size(weights) != n ||
        !ptac_value_numbers(plan, tensors, N_TENSORS, s->inputs) ||
        !ptac_value_numbers(plan, weights, n, numbers) || s->inputs[X] < 0 ||
        s->inputs[H] < 0)
        return false;
    for (int i = 0; i < N_TENSORS; i++)
        *views[i] = s->inputs[i] < 0 ? ptac_absent() : plan->values[s->inputs[i]].view;
    for (int part = 0; part < s->n_parts; part++)
        for (int i = 0; i < MOST_WEIGHTS; i++) {
            const int value = i < s->n_weights ? numbers[part * s->n_weights + i] : -1;

            if (i < s->n_weights && value < 0)
                return false;
            s->weights[part][i] = value;
            *weight_view(s, part, i) =
                value < 0 ? ptac_absent() : plan->values[value].view;
        }
    return true;
}

/* Whether they are those of a recurrent layer; an exception may be set. */
static bool read_options(PyObject *options, recurrent_step *s)
{
    const char *name;
    int n_layers, n_directions, has_biases, is_batch_first;
    static const ptac_op ops[] = {PTAC_OP_LSTM, PTAC_OP_GRU, PTAC_OP_RNN_TANH,
                                  PTAC_OP_RNN_RELU};

    if (!PyArg_ParseTuple(options, "siiii", &name, &n_layers, &n_directions,
                          &has_biases, &is_batch_first) ||
        n_layers < 1 || n_directions < 1 || n_directions > 2 ||
        n_layers > PTAC_RECURRENT_MOST_PARTS / n_directions)
        return false;
    s->sequence.n_layers = n_layers;
    s->sequence.n_directions = n_directions;
    s->sequence.is_batch_first = is_batch_first;
    s->n_parts = n_layers * n_directions;
    s->n_weights = has_biases ? MOST_WEIGHTS : MOST_WEIGHTS / 2;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(name, ptac_op_name(ops[i])) == 0) {
            s->sequence.op = ops[i];
            return true;
        }
    return false;
}

/* Without gaps, as rows want them: what a call would have copied first. */
static ptac_reason states_reason(const recurrent_step *s)
{
    const ptac_view *const states[] = {&s->sequence.h, &s->sequence.c};

    for (int i = 0; i < 2; i++)
        if (states[i]->n_dims && !ptac_view_is_contiguous(states[i]))
            return PTAC_LAYOUT;
    return s->sequence.x.n_dims == 3 ? PTAC_TAKE : PTAC_SHAPE;
}

/*
 * plan_recurrent(plan, (name, layers, directions, has_biases, is_batch_first), (x, h, c
 * or None), weights, outputs, ends, are_frozen): rows of lstm, gru, rnn_tanh or
 * rnn_relu. Where are_frozen, weights stay as they are. None, or why there is none.
 */
PTAC_ARGS(plan_recurrent, 7)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    recurrent_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!s)
        return plan ? PyErr_NoMemory() : NULL;
    PTAC_IN_FLIGHT;
    s->step = (ptac_step){.run = run, .drop = drop, .allocates = true};
    if (read_options(args[1], s) && read_values(plan, args[2], args[3], s) &&
        ptac_value_numbers(plan, args[4], s->sequence.op == PTAC_OP_LSTM ? 3 : 2,
                           s->outputs)) {
        if (s->sequence.op != PTAC_OP_LSTM)
            s->outputs[C] = -1;
        why = states_reason(s);
        if (!why)
            why = ptac_recurrent_probe(&s->sequence, false, &s->step.row);
    }
    if (why || PyErr_Occurred()) {
        drop(&s->step);
        return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
    }
    s->sequence.may_keep = args[6] == Py_True;
    if (s->sequence.may_keep)
        s->sequence.kept = s->kept;
    return ptac_plan_add(plan, &s->step, args[5]);
}
