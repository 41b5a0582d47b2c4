/*
 * arguments.c - arguments by the types of a schema, see overrides/arguments.c.
 */
#include "bind/python/graph/arguments.h"

static bool read_tensor(ptac_plan *plan, PyObject *given, ptac_argument *to, int *value)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) != 1)
        return false;
    *value = ptac_value_number(plan, PyTuple_GetItem(given, 0));
    if (*value < 0)
        return false;
    to->view = plan->values[*value].view;
    return true;
}

static bool read_ints(PyObject *given, ptac_argument *to)
{
    const Py_ssize_t n = PyList_CheckExact(given) ? PyList_Size(given) : -1;
    const size_t at_once = sizeof to->ints.values / sizeof *to->ints.values;
    int64_t *room = to->ints.values;

    if (n < 0)
        return false;
    if ((size_t)n > at_once)
        room = PyMem_Calloc((size_t)n, sizeof *room);
    if (!room)
        return false;
    to->all = room;
    to->ints.n = (int)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        room[i] = PyLong_AsLongLong(PyList_GetItem(given, i));
        if (i < (Py_ssize_t)at_once)
            to->ints.values[i] = room[i];
    }
    if (n == 1)
        to->ints.values[1] = to->ints.values[0];
    return true;
}

static bool read_number(PyObject *given, ptac_argument *to)
{
    if (!PyLong_Check(given))
        return false;
    to->number = PyLong_AsLongLong(given);
    return true;
}

static bool read_real(PyObject *given, double *to)
{
    if (!PyFloat_Check(given) && !PyLong_Check(given))
        return false;
    *to = PyFloat_AsDouble(given);
    return true;
}

/* An int only where a double holds it. */
static bool read_scalar(PyObject *given, ptac_argument *to)
{
    static const double most = 9007199254740992; /* 2^53 */

    to->scalar = NULL;
    return read_real(given, &to->value) &&
           (PyFloat_Check(given) || (to->value <= most && to->value >= -most));
}

/* The text stays the object's. */
static bool read_text(PyObject *given, ptac_argument *to)
{
    Py_ssize_t length = 0;
    const char *text =
        PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &length) : NULL;

    to->text = (at_text){(size_t)length, text};
    return text;
}

static bool read_argument(ptac_plan *plan, PyObject *given, char type,
                          ptac_argument *to, int *value)
{
    to->is_given = given != Py_None;
    if (!to->is_given)
        return type < 'a';
    switch (type | 0x20) {
    case 't':
        return read_tensor(plan, given, to, value);
    case 'l':
    case 'm':
    case 'p':
        return read_ints(given, to);
    case 's':
    case 'i':
        return read_number(given, to);
    case 'b':
        to->truth = given == Py_True;
        return PyBool_Check(given);
    case 'd':
        return read_real(given, &to->real);
    case 'c':
        return read_scalar(given, to);
    default:
        return read_text(given, to);
    }
}

bool ptac_plan_arguments(ptac_plan *plan, PyObject *tuple, ptac_arguments *args,
                         int values[PTAC_MAX_ARGUMENTS])
{
    const int n = args->of->n_arguments;
    bool is_read = PyTuple_Check(tuple) && PyTuple_Size(tuple) == n;

    for (int i = 0; i < n; i++) {
        args->at[i] = (ptac_argument){0};
        values[i] = -1;
    }
    for (int i = 0; i < n && is_read; i++)
        is_read = read_argument(plan, PyTuple_GetItem(tuple, i), args->of->types[i],
                                &args->at[i], &values[i]) &&
                  !PyErr_Occurred();
    PyErr_Clear();
    return is_read;
}

void ptac_plan_arguments_drop(ptac_arguments *args)
{
    for (int i = 0; i < args->of->n_arguments; i++) {
        ptac_argument *argument = &args->at[i];
        const char type = args->of->types[i] | 0x20;

        if ((type == 'l' || type == 'm' || type == 'p') && argument->is_given &&
            argument->all && argument->all != argument->ints.values)
            PyMem_Free((void *)(uintptr_t)argument->all);
    }
}
