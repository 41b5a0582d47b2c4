/*
 * step_squeeze_excite.c - steps that weigh channels by a small network over their
 * means.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/rows/convolution/convolution.h"
#include "ops/squeeze_excite/squeeze_excite.h"

typedef struct excite_step {
    ptac_step step;
    ptac_squeeze_excite params;
    ptac_call call;
    int inputs[PTAC_EXCITE_INPUTS], output;
} excite_step;

static void drop(ptac_step *step)
{
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    excite_step *s = (excite_step *)step;

    for (int i = 0; i < s->call.n_inputs; i++)
        s->call.inputs[i].data = ptac_value_data(plan, s->inputs[i]);
    if (!ptac_value_make(plan, s->output))
        return false;
    s->call.outputs[0].data = ptac_value_data(plan, s->output);
    s->call.n_threads = ptac_the_host.n_threads();
    return ptac_step_run_row(step->row, &s->call);
}

/* x, w1, w2 and, if there are any, b1 and b2: numbers of their values. */
static ptac_reason read_inputs(ptac_plan *plan, PyObject *tuple, excite_step *s)
{
    const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;

    if (n != PTAC_EXCITE_B1 && n != PTAC_EXCITE_INPUTS)
        return PTAC_ARGUMENT;
    s->call.n_inputs = (int)n;
    for (int i = 0; i < (int)n; i++) {
        s->inputs[i] = ptac_value_number(plan, PyTuple_GetItem(tuple, i));
        if (s->inputs[i] < 0)
            return PTAC_ARGUMENT;
        s->call.inputs[i] = plan->values[s->inputs[i]].view;
    }
    return PTAC_TAKE;
}

/* Sizes fit each other, and tensors have no gaps; weights are kernels of 1x1. */
static ptac_reason read_sizes(excite_step *s)
{
    const ptac_view *in = s->call.inputs, *x = &in[PTAC_EXCITE_X];
    const ptac_view *w1 = &in[PTAC_EXCITE_W1], *w2 = &in[PTAC_EXCITE_W2];
    ptac_squeeze_excite *p = &s->params;

    if (x->n_dims < 3 || w1->n_dims < 2 || w2->n_dims < 2)
        return PTAC_SHAPE;
    p->n = x->sizes[0];
    p->n_channels = x->sizes[1];
    p->n_hidden = w1->sizes[0];
    if (p->n == 0 || p->n_channels == 0 || p->n_hidden == 0)
        return PTAC_EMPTY;
    p->n_places = x->n_elements / (p->n * p->n_channels);
    if (w1->n_elements != p->n_hidden * p->n_channels ||
        w2->n_elements != w1->n_elements || w2->sizes[0] != p->n_channels)
        return PTAC_SHAPE;
    for (int i = PTAC_EXCITE_X; i <= PTAC_EXCITE_W2; i++)
        if (!ptac_view_is_contiguous(&in[i]))
            return PTAC_LAYOUT;
    if (s->call.n_inputs > PTAC_EXCITE_B1 &&
        (ptac_vector_reason(&in[PTAC_EXCITE_B1], p->n_hidden) ||
         ptac_vector_reason(&in[PTAC_EXCITE_B2], p->n_channels)))
        return PTAC_SHAPE;
    return ptac_view_is_alike(&s->call.outputs[0], x) ? PTAC_TAKE : PTAC_LAYOUT;
}

/*
 * plan_squeeze_excite(plan, (x, w1, w2) or with (b1, b2), activation, is_hard, output,
 * ends): a row of squeeze_excite. The output may lie where x does. None, or why there
 * is none.
 */
PTAC_ARGS(plan_squeeze_excite, 6)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    const long act = PyLong_AsLong(args[2]);
    excite_step *s = plan && !PyErr_Occurred() ? PyMem_Calloc(1, sizeof *s) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!s)
        return plan && !PyErr_Occurred() ? PyErr_NoMemory() : NULL;
    PTAC_IN_FLIGHT;
    s->step = (ptac_step){.run = run, .drop = drop};
    s->params =
        (ptac_squeeze_excite){.act = (ptac_act)act, .is_hard = args[3] == Py_True};
    s->call =
        (ptac_call){.op = PTAC_OP_SQUEEZE_EXCITE, .n_outputs = 1, .params = &s->params};
    s->output = PyTuple_Check(args[4]) && PyTuple_Size(args[4]) == 1
                    ? ptac_value_number(plan, PyTuple_GetItem(args[4], 0))
                    : -1;
    if (s->output >= 0) {
        s->call.outputs[0] = plan->values[s->output].view;
        why = read_inputs(plan, args[1], s);
    }
    if (!why && ptac_conv_precision_is_lowered())
        why = PTAC_MODE;
    if (!why)
        why = read_sizes(s);
    if (!why)
        s->step.row = ptac_probe(&s->call, &why);
    if (!why && s->step.row)
        return ptac_plan_add(plan, &s->step, args[5]);
    drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}
