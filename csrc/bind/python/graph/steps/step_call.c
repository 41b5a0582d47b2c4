/*
 * step_call.c - steps that call a function of torch's.
 */
#include "bind/python/graph/graph.h"

#include "bind/python/interpreter/vectorcall.h"
#include "bind/python/module/names.h"

/* A value among the arguments: argument at, or its element, where that is a list. */
typedef struct hole {
    int at, element, value; /* element -1: the argument itself */
} hole;

typedef struct call_step {
    ptac_step step;
    PyObject *function, *args, *keywords; /* args: the list to fill holes of */
    PyObject **given;                     /* room for arguments of a call */
    int n_args, n_keywords, n_holes, n_outputs;
    hole *holes;
    int *outputs;
} call_step;

static void drop(ptac_step *step)
{
    call_step *s = (call_step *)step;

    Py_XDECREF(s->function);
    Py_XDECREF(s->args);
    Py_XDECREF(s->keywords);
    PyMem_Free(s->given);
    PyMem_Free(s->holes);
    PyMem_Free(s->outputs);
    PyMem_Free(s->step.ends);
    PyMem_Free(s);
}

/* Arguments as they are but for lists, of which the call gets its own. */
static bool copy_arguments(call_step *s)
{
    for (int i = 0; i < s->n_args; i++) {
        PyObject *argument = PyTuple_GetItem(s->args, i);

        s->given[i] = PyList_CheckExact(argument)
                          ? PyList_GetSlice(argument, 0, PyList_Size(argument))
                          : Py_NewRef(argument);
        if (!s->given[i])
            return false;
    }
    return true;
}

static bool fill(ptac_plan *plan, call_step *s)
{
    for (int i = 0; i < s->n_holes; i++) {
        const hole *h = &s->holes[i];
        PyObject *tensor = ptac_value_object(plan, h->value);

        if (!tensor)
            return false;
        if (h->element >= 0)
            PyList_SetItem(s->given[h->at], h->element, Py_NewRef(tensor));
        else
            ptac_keep(&s->given[h->at], tensor);
    }
    return true;
}

/* What has memory already is given the result's numbers. */
static bool put(ptac_plan *plan, int value, PyObject *result)
{
    PyObject *to, *done;

    if (plan->values[value].kind == PTAC_VALUE_MADE)
        return ptac_value_take_object(plan, value, Py_NewRef(result));
    to = ptac_value_object(plan, value);
    done = to ? PyObject_CallMethodObjArgs(to, ptac_names.copy_, result, NULL) : NULL;
    Py_XDECREF(done);
    return done;
}

/* An output that nobody reads has no number. */
static bool take(ptac_plan *plan, const call_step *s, PyObject *result)
{
    const bool are_several = PyTuple_Check(result) || PyList_Check(result);

    if (s->n_outputs == 0)
        return true;
    if (s->n_outputs == 1 && !are_several)
        return s->outputs[0] < 0 || put(plan, s->outputs[0], result);
    if (!are_several || PySequence_Size(result) < s->n_outputs)
        return false;
    for (int i = 0; i < s->n_outputs; i++) {
        PTAC_OWNED PyObject *output = PySequence_GetItem(result, i);

        if (!output || (s->outputs[i] >= 0 && !put(plan, s->outputs[i], output)))
            return false;
    }
    return !PyErr_Occurred();
}

static int traverse(const ptac_step *step, visitproc visit, void *arg)
{
    const call_step *s = (const call_step *)step;

    Py_VISIT(s->function);
    Py_VISIT(s->args);
    return 0;
}

static bool run(ptac_plan *plan, ptac_step *step)
{
    call_step *s = (call_step *)step;
    PyObject *result = NULL;
    bool is_done;

    if (copy_arguments(s) && fill(plan, s))
        result = ptac_vectorcall(s->function, s->given,
                                 (size_t)(s->n_args - s->n_keywords), s->keywords);
    for (int i = 0; i < s->n_args; i++)
        Py_CLEAR(s->given[i]);
    is_done = result && take(plan, s, result);
    Py_XDECREF(result);
    return is_done;
}

static bool fits(const call_step *s, const hole *h)
{
    PyObject *argument =
        h->at >= 0 && h->at < s->n_args ? PyTuple_GetItem(s->args, h->at) : NULL;

    return argument && (h->element < 0 || (PyList_CheckExact(argument) &&
                                           h->element < PyList_Size(argument)));
}

static bool describe(ptac_plan *plan, call_step *s, PyObject *holes, PyObject *outputs)
{
    s->n_args = (int)PyTuple_Size(s->args);
    s->n_keywords = s->keywords ? (int)PyTuple_Size(s->keywords) : 0;
    s->given = PyMem_Calloc((size_t)s->n_args + 1, sizeof *s->given);
    s->holes = PyMem_Calloc((size_t)PyTuple_Size(holes) + 1, sizeof *s->holes);
    s->outputs = PyMem_Calloc((size_t)PyTuple_Size(outputs) + 1, sizeof *s->outputs);
    if (!s->given || !s->holes || !s->outputs)
        return PyErr_NoMemory();
    for (; s->n_holes < PyTuple_Size(holes); s->n_holes++) {
        hole *h = &s->holes[s->n_holes];

        if (!PyArg_ParseTuple(PyTuple_GetItem(holes, s->n_holes), "iii", &h->at,
                              &h->element, &h->value))
            return false;
        if (!fits(s, h) || h->value < 0 || h->value >= plan->n_values)
            return PyErr_Format(PyExc_ValueError, "no such argument or value");
    }
    for (; s->n_outputs < PyTuple_Size(outputs); s->n_outputs++) {
        PyObject *number = PyTuple_GetItem(outputs, s->n_outputs);
        const int value = number == Py_None ? -1 : ptac_value_number(plan, number);

        if (value >= 0 && plan->values[value].kind == PTAC_VALUE_GIVEN)
            return PyErr_Format(PyExc_ValueError, "what is given is not written so");
        s->outputs[s->n_outputs] = value;
    }
    return !PyErr_Occurred();
}

/*
 * plan_call(plan, function, args, keywords, holes, outputs, ends): add a call of
 * function(*args), of which the last have the names in the tuple keywords, or None.
 * Each of holes, (argument, element or -1, value), puts a value in. outputs are values,
 * or None for one that nobody reads.
 */
PTAC_ARGS(plan_call, 7)
{
    ptac_plan *plan = ptac_plan_of(args[0]);
    call_step *s = plan ? PyMem_Calloc(1, sizeof *s) : NULL;

    if (!plan || !s)
        return plan ? PyErr_NoMemory() : NULL;
    s->step = (ptac_step){.run = run, .drop = drop, .traverse = traverse};
    s->function = Py_NewRef(args[1]);
    s->args = Py_NewRef(args[2]);
    s->keywords = args[3] == Py_None ? NULL : Py_NewRef(args[3]);
    if (PyTuple_Check(args[2]) && PyTuple_Check(args[4]) && PyTuple_Check(args[5]) &&
        (!s->keywords || PyTuple_Check(s->keywords)) &&
        describe(plan, s, args[4], args[5]))
        return ptac_plan_add(plan, &s->step, args[6]);
    drop(&s->step);
    return PyErr_Occurred() ? NULL
                            : PyErr_Format(PyExc_TypeError, "tuples are expected");
}
