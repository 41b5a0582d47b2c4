/*
 * step_linear.c - steps of a Linear layer, with its activation.
 */
#include "bind/python/graph/graph.h"
#include "bind/torch/rows/linear_act.h"

#include <stdlib.h>

enum {
    X,
    W,
    BIAS,
    N_TENSORS,
};

typedef struct linear_step {
    ptac_step step;
    const ptac_kernel *row;
    ptac_act activation;
    int inputs[N_TENSORS], output; /* BIAS may be -1 */
    bool may_keep;                 /* the weight stays as it is: nothing is kept yet */
    ptac_kept kept;
} linear_step;

static void drop(ptac_step *step)
{
    free(((linear_step *)step)->kept.data);
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    linear_step *s = (linear_step *)step;
    const at_tensor bias =
        s->inputs[BIAS] < 0 ? NULL : ptac_value_handle(plan, s->inputs[BIAS]);
    ptac_linear_tensors t = {.x = ptac_value_handle(plan, s->inputs[X]),
                             .w = ptac_value_handle(plan, s->inputs[W]),
                             .bias = bias};
    ptac_linear_act params;
    ptac_call call;

    if (!t.x || !t.w || (s->inputs[BIAS] >= 0 && !bias) ||
        ptac_linear_size(&t, s->activation, false, &params, &call) ||
        ptac_linear_read(&t, &call))
        return false;
    if (plan->values[s->output].kind != PTAC_VALUE_MADE) {
        t.into = ptac_value_handle(plan, s->output);
        if (!t.into)
            return false;
    }
    call.n_threads = ptac_the_host.n_threads();
    call.outputs[0].n_elements = params.m * params.n;
    if (s->may_keep)
        ptac_keep_weights(s->row, &call, &s->kept);
    s->may_keep = false;
    call.kept = s->kept.data ? &s->kept : NULL;
    if (!ptac_step_run_row(s->row, &call)) {
        at_drop_tensor(&t.y);
        return false;
    }
    if (!t.into)
        return ptac_value_take(plan, s->output, t.y);
    at_drop_tensor(&t.y);
    return true;
}

/* A bias without gaps, or none. */
static bool has_vector(const ptac_plan *plan, const linear_step *s)
{
    const int64_t n = plan->values[s->inputs[W]].view.sizes[0];

    return s->inputs[BIAS] < 0 ||
           !ptac_vector_reason(&plan->values[s->inputs[BIAS]].view, n);
}

static const ptac_kernel *choose(ptac_plan *plan, linear_step *s, ptac_reason *why)
{
    const ptac_view *x = &plan->values[s->inputs[X]].view;
    const ptac_view *w = &plan->values[s->inputs[W]].view;
    const bool are_matrices = x->n_dims >= 2 && w->n_dims == 2;
    ptac_linear_act params;
    ptac_call call = {.op = PTAC_OP_LINEAR_ACT, .n_inputs = 2, .params = &params};
    const ptac_kernel *row;

    *why = PTAC_SHAPE;
    if (!are_matrices || x->sizes[x->n_dims - 1] != w->sizes[1] || w->sizes[1] == 0)
        return NULL;
    *why = PTAC_LAYOUT;
    if (!ptac_linear_can_read(x) || !ptac_linear_can_read(w) || !has_vector(plan, s))
        return NULL;
    call.inputs[0] = *x;
    call.inputs[1] = *w;
    params = (ptac_linear_act){.m = x->n_elements / w->sizes[1],
                               .n = w->sizes[0],
                               .k = w->sizes[1],
                               .activation = s->activation};
    call.kept = s->may_keep ? &s->kept : NULL; /* as a promise */
    row = ptac_probe_or(&call, "blas", why);
    if (row && (row->in_bf16 || ptac_products_are_lowered()))
        *why = PTAC_PRECISION;
    if (row && !*why && plan->values[s->output].kind != PTAC_VALUE_MADE &&
        !ptac_linear_writes_into(row))
        *why = PTAC_ARGUMENT;
    return *why ? NULL : row;
}

/*
 * plan_linear(plan, (x, w, bias or None), activation, output, ends, is_frozen): a row
 * of linear_act. Where is_frozen, w stays as it is. None, or why there is none.
 */
PTAC_ARGS(plan_linear, 6)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    linear_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;
    ptac_reason why = PTAC_ARGUMENT;

    if (!plan || !s)
        return plan ? PyErr_NoMemory() : NULL;
    s->step = (ptac_step){.run = run, .drop = drop};
    s->inputs[X] = s->inputs[W] = s->inputs[BIAS] = -1;
    s->activation = (ptac_act)PyLong_AsLong(args[2]);
    s->output = ptac_value_number(plan, args[3]);
    s->may_keep = args[5] == Py_True;
    if (PyTuple_Check(args[1]) && PyTuple_Size(args[1]) == N_TENSORS)
        for (int i = 0; i < N_TENSORS && !PyErr_Occurred(); i++) {
            PyObject *number = PyTuple_GetItem(args[1], i);

            s->inputs[i] =
                i == BIAS && number == Py_None ? -1 : ptac_value_number(plan, number);
        }
    if (!PyErr_Occurred() && s->inputs[X] >= 0 && s->inputs[W] >= 0) {
        PTAC_IN_FLIGHT;
        s->row = choose(plan, s, &why);
    }
    s->step.row = s->row;
    s->step.allocates = s->row && !ptac_linear_writes_into(s->row);
    if (s->row)
        return ptac_plan_add(plan, &s->step, args[4]);
    drop(&s->step);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ptac_reason_text(why));
}
