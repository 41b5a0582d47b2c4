/*
 * step_norm_training.c - steps of a batch normalization by the statistics of the batch
 * with the activation behind it, and of the gradients of both.
 *
 * The first one leaves four numbers a channel for the second: mean, rstd, scale, shift.
 */
#include "bind/python/graph/graph.h"

#include "bind/python/callpath/norm/norm_chain.h"

enum {
    N_FORWARD = PTAC_BATCH_NORM_N_INPUTS, /* x, weight, bias, running mean, variance */
    N_BACKWARD = 4,                       /* gradient, x, weight, numbers */
    N_NUMBERS = 4,
    MOST_INPUTS = N_FORWARD,
    MOST_OUTPUTS = PTAC_BATCH_NORM_GRAD_N_OUTPUTS,

    Y = 0, /* outputs of the first */
    NUMBERS,
};

typedef struct norm_step {
    ptac_step step;
    ptac_call call;
    ptac_channel_norm params;
    int n_inputs, n_outputs;
    int inputs[MOST_INPUTS], outputs[MOST_OUTPUTS]; /* -1: there is none */
} norm_step;

static void drop(ptac_step *step)
{
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

/* A line of the numbers, whose data follows below. */
static void take_lines(const ptac_plan *plan, int numbers, ptac_view *first)
{
    const ptac_view *of = &plan->values[numbers].view;

    for (int line = 0; line < N_NUMBERS; line++)
        first[line] = (ptac_view){.sizes = &of->sizes[1],
                                  .strides = &of->strides[1],
                                  .n_elements = of->sizes[1],
                                  .n_dims = 1,
                                  .dtype = PTAC_F32};
}

static void put_lines(const ptac_plan *plan, int numbers, ptac_view *first)
{
    float *data = ptac_value_data(plan, numbers);

    for (int line = 0; data && line < N_NUMBERS; line++)
        first[line].data = data + line * first[line].n_elements;
}

/* Where the lines are: of the first step's outputs, of the second one's inputs. */
static void put_forward_lines(const ptac_plan *plan, norm_step *s)
{
    ptac_view lines[N_NUMBERS], *out = s->call.outputs;

    take_lines(plan, s->outputs[NUMBERS], lines);
    put_lines(plan, s->outputs[NUMBERS], lines);
    out[PTAC_BATCH_NORM_MEAN] = lines[0];
    out[PTAC_BATCH_NORM_RSTD] = lines[1];
    out[PTAC_BATCH_NORM_SCALE] = lines[2];
    out[PTAC_BATCH_NORM_SHIFT] = lines[3];
}

static void put_backward_lines(const ptac_plan *plan, norm_step *s)
{
    ptac_view *in = s->call.inputs;
    ptac_view lines[N_NUMBERS];

    take_lines(plan, s->inputs[3], lines);
    put_lines(plan, s->inputs[3], lines);
    in[PTAC_BATCH_NORM_GRAD_MEAN] = lines[0];
    in[PTAC_BATCH_NORM_GRAD_RSTD] = lines[1];
    in[PTAC_BATCH_NORM_GRAD_SCALE] = lines[2];
    in[PTAC_BATCH_NORM_GRAD_SHIFT] = lines[3];
}

static bool make_outputs(ptac_plan *plan, const norm_step *s)
{
    for (int i = 0; i < s->n_outputs; i++)
        if (s->outputs[i] >= 0 && !ptac_value_make(plan, s->outputs[i]))
            return false;
    return true;
}

static bool run_forward(ptac_plan *plan, ptac_step *step)
{
    norm_step *s = (norm_step *)step;
    ptac_call *call = &s->call;

    if (!make_outputs(plan, s))
        return false;
    for (int i = 0; i < N_FORWARD; i++)
        if (s->inputs[i] >= 0)
            call->inputs[i].data = ptac_value_data(plan, s->inputs[i]);
    call->outputs[PTAC_BATCH_NORM_Y].data = ptac_value_data(plan, s->outputs[Y]);
    put_forward_lines(plan, s);
    /* New running statistics go where the old ones are, as stock's do. */
    call->outputs[PTAC_BATCH_NORM_NEW_MEAN] =
        call->inputs[PTAC_BATCH_NORM_RUNNING_MEAN];
    call->outputs[PTAC_BATCH_NORM_NEW_VAR] = call->inputs[PTAC_BATCH_NORM_RUNNING_VAR];
    return ptac_step_run_row(step->row, call);
}

static bool run_backward(ptac_plan *plan, ptac_step *step)
{
    norm_step *s = (norm_step *)step;
    ptac_call *call = &s->call;

    if (!make_outputs(plan, s))
        return false;
    for (int i = 0; i < N_BACKWARD - 1; i++)
        if (s->inputs[i] >= 0)
            call->inputs[i].data = ptac_value_data(plan, s->inputs[i]);
    put_backward_lines(plan, s);
    for (int i = 0; i < MOST_OUTPUTS; i++)
        if (s->outputs[i] >= 0)
            call->outputs[i].data = ptac_value_data(plan, s->outputs[i]);
    return ptac_step_run_row(step->row, call);
}

/* The views of inputs, which but for the images have an element for each channel. */
static ptac_reason take_inputs(const ptac_plan *plan, norm_step *s, int n, int n_images)
{
    for (int i = 0; i < n; i++) {
        ptac_view *view = &s->call.inputs[i];

        *view = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
        if (s->inputs[i] < 0)
            continue;
        *view = plan->values[s->inputs[i]].view;
        if (view->dtype != PTAC_F32)
            return PTAC_DTYPE;
        if (i >= n_images && ptac_vector_reason(view, s->params.n_channels))
            return PTAC_LAYOUT;
    }
    return PTAC_TAKE;
}

static bool are_numbers(const ptac_plan *plan, int value, int64_t n_channels)
{
    const ptac_view *view = value < 0 ? NULL : &plan->values[value].view;

    return view && view->dtype == PTAC_F32 && view->n_dims == 2 &&
           view->sizes[0] == N_NUMBERS && view->sizes[1] == n_channels &&
           ptac_view_is_contiguous(view);
}

/* Images that lie as x does, densely. */
static bool lies_like(const ptac_view *view, const ptac_view *x)
{
    return view->dtype == PTAC_F32 && ptac_view_is_alike(view, x);
}

static const ptac_kernel *choose(norm_step *s, ptac_reason *why)
{
    const ptac_op backward = PTAC_OP_BATCH_NORM_ACT_BACKWARD;
    const ptac_kernel *row, *gradient;

    *why = ptac_chooser_gate(backward);
    row = *why ? NULL : ptac_probe(&s->call, why);
    gradient = row ? ptac_registry_find(backward, row->name) : NULL;
    if (row && (!gradient || ptac_chooser_is_quarantined(gradient)))
        *why = PTAC_QUARANTINED;
    return *why ? NULL : row;
}

static ptac_reason prepare_forward(const ptac_plan *plan, norm_step *s)
{
    const ptac_view *x;
    bool channels_last;
    ptac_reason why;

    if (s->inputs[0] < 0 || s->outputs[Y] < 0 ||
        (s->inputs[PTAC_BATCH_NORM_RUNNING_MEAN] < 0) !=
            (s->inputs[PTAC_BATCH_NORM_RUNNING_VAR] < 0))
        return PTAC_ARGUMENT;
    x = &plan->values[s->inputs[0]].view;
    why = x->dtype != PTAC_F32 ? PTAC_DTYPE
          : x->n_elements == 0 ? PTAC_EMPTY
                               : ptac_norm_read_x(x, &s->params, &channels_last);
    if (!why)
        why = take_inputs(plan, s, N_FORWARD, 1);
    if (why)
        return why;
    if (!lies_like(&plan->values[s->outputs[Y]].view, x) ||
        !are_numbers(plan, s->outputs[NUMBERS], s->params.n_channels))
        return PTAC_LAYOUT;
    s->call.outputs[PTAC_BATCH_NORM_Y] = plan->values[s->outputs[Y]].view;
    s->call.n_inputs = N_FORWARD;
    s->call.n_outputs = PTAC_BATCH_NORM_ACT_N_OUTPUTS;
    s->step.row = choose(s, &why);
    return why;
}

static ptac_reason prepare_backward(const ptac_plan *plan, norm_step *s,
                                    const char *row_name)
{
    const ptac_view *x;
    bool channels_last;
    ptac_reason why;

    if (s->inputs[0] < 0 || s->inputs[1] < 0)
        return PTAC_ARGUMENT;
    x = &plan->values[s->inputs[1]].view;
    why = x->dtype != PTAC_F32 ? PTAC_DTYPE
          : x->n_elements == 0 ? PTAC_EMPTY
                               : ptac_norm_read_x(x, &s->params, &channels_last);
    if (!why)
        why = take_inputs(plan, s, N_BACKWARD - 1, 2);
    if (why)
        return why;
    if (!lies_like(&plan->values[s->inputs[0]].view, x) ||
        !are_numbers(plan, s->inputs[3], s->params.n_channels))
        return PTAC_LAYOUT;
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        if (s->outputs[i] < 0)
            continue;
        s->call.outputs[i] = plan->values[s->outputs[i]].view;
        if (i == 0 ? !lies_like(&s->call.outputs[i], x)
                   : ptac_vector_reason(&s->call.outputs[i], s->params.n_channels) != 0)
            return PTAC_LAYOUT;
    }
    s->call.n_inputs = PTAC_BATCH_NORM_ACT_GRAD_N_INPUTS;
    s->call.n_outputs = PTAC_BATCH_NORM_GRAD_N_OUTPUTS;
    put_backward_lines(plan, s);
    s->step.row = ptac_admit_row(&s->call, row_name);
    return s->step.row ? PTAC_TAKE : PTAC_ARGUMENT;
}

static PyObject *add(ptac_plan *plan, norm_step *s, ptac_reason why, PyObject *ends)
{
    s->call.params = &s->params;
    if (!why && !PyErr_Occurred())
        return ptac_plan_add(plan, &s->step, ends);
    drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}

static norm_step *new_step(ptac_op op, PyObject *act, int n_outputs)
{
    norm_step *s = PyMem_Calloc(1, sizeof *s);

    if (!s) {
        PyErr_NoMemory();
        return NULL;
    }
    s->step.drop = drop;
    s->n_outputs = n_outputs;
    s->params =
        (ptac_channel_norm){.by_batch = true, .act = (ptac_act)PyLong_AsLong(act)};
    s->call = (ptac_call){.op = op, .params = &s->params};
    if (!PyErr_Occurred() && ptac_act_is_behind_norm(s->params.act))
        return s;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no such activation");
    drop(&s->step);
    return NULL;
}

/*
 * plan_norm_training(plan, (x, weight, bias, running mean, running variance), momentum,
 * eps, activation, (y, numbers), ends): a row of batch_norm_act by the batch, which
 * changes the running statistics. What is not there is None. None, or why there is no
 * row.
 */
PTAC_ARGS(plan_norm_training, 7)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    norm_step *s = plan ? new_step(PTAC_OP_BATCH_NORM_ACT, args[4], 2) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!s)
        return NULL;
    s->step.run = run_forward;
    s->params.momentum = PyFloat_AsDouble(args[2]);
    s->params.eps = PyFloat_AsDouble(args[3]);
    if (!PyErr_Occurred() && ptac_value_numbers(plan, args[1], N_FORWARD, s->inputs) &&
        ptac_value_numbers(plan, args[5], s->n_outputs, s->outputs)) {
        PTAC_IN_FLIGHT;
        why = prepare_forward(plan, s);
    }
    return add(plan, s, why, args[6]);
}

/*
 * plan_norm_gradients(plan, row, (gradient, x, weight, numbers), activation, (of x, of
 * weight, of bias), ends): its gradients, by the row that has made the numbers.
 */
PTAC_ARGS(plan_norm_gradients, 6)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    norm_step *s =
        plan ? new_step(PTAC_OP_BATCH_NORM_ACT_BACKWARD, args[3], MOST_OUTPUTS) : NULL;
    const char *row_name = s ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!s)
        return NULL;
    s->step.run = run_backward;
    if (row_name && ptac_value_numbers(plan, args[2], N_BACKWARD, s->inputs) &&
        ptac_value_numbers(plan, args[4], s->n_outputs, s->outputs)) {
        PTAC_IN_FLIGHT;
        why = prepare_backward(plan, s, row_name);
    }
    return add(plan, s, why, args[5]);
}
