/*
 * step_gradients.c - steps that have parameters have gradients, or have none.
 */
#include "bind/python/graph/graph.h"
#include "bind/python/module/names.h"

typedef struct gradients_step {
    ptac_step step;
    int n;
    int (*pairs)[2]; /* values: a parameter, and its gradient or -1 */
} gradients_step;

static void drop(ptac_step *step)
{
    PyMem_Free(((gradients_step *)step)->pairs);
    PyMem_Free(step->ends);
    PyMem_Free(step);
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    const gradients_step *s = (gradients_step *)step;

    for (int i = 0; i < s->n; i++) {
        PyObject *parameter = ptac_value_object(plan, s->pairs[i][0]);
        PyObject *grad =
            s->pairs[i][1] < 0 ? Py_None : ptac_value_object(plan, s->pairs[i][1]);

        if (!parameter || !grad ||
            PyObject_SetAttr(parameter, ptac_names.grad, grad) < 0)
            return false;
    }
    return true;
}

static bool read_pairs(const ptac_plan *plan, PyObject *tuple, gradients_step *s)
{
    const Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;

    s->pairs = PyMem_Calloc((size_t)n + 1, sizeof *s->pairs);
    if (!s->pairs)
        return PyErr_NoMemory();
    for (; s->n < n; s->n++) {
        int *pair = s->pairs[s->n];

        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, s->n), "ii", &pair[0], &pair[1]))
            return false;
        if (pair[0] < 0 || pair[0] >= plan->n_values ||
            plan->values[pair[0]].kind != PTAC_VALUE_GIVEN || pair[1] >= plan->n_values)
            return PyErr_Format(PyExc_ValueError, "no such value, or not a parameter");
    }
    return true;
}

/*
 * plan_gradients(plan, ((parameter, gradient or -1), ...), ends): add a step that sets
 * the .grad of parameters, which the plan is given, to values or to None.
 */
PTAC_ARGS(plan_gradients, 3)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    gradients_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;

    if (!plan || !s)
        return plan ? PyErr_NoMemory() : NULL;
    s->step = (ptac_step){.run = run, .drop = drop, .has_effects = true};
    if (read_pairs(plan, args[1], s))
        return ptac_plan_add(plan, &s->step, args[2]);
    drop(&s->step);
    return NULL;
}
