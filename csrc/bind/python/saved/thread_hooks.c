/*
 * thread_hooks.c - this thread's hooks on what is saved, which torch keeps on a stack.
 *
 * Off and back again in one go: an interrupt in between would lose those of others.
 */
#include "bind/python/module/pybind.h"

PTAC_LENT(top_saved_hooks) /* torch's: (also those of tracing) -> a pair, or None */
PTAC_LENT(pop_saved_hooks)
PTAC_LENT(push_saved_hooks) /* (pack, unpack) */

/* All of them, the top one first. */
static PyObject *taken_down(void)
{
    PyObject *found = PyList_New(0);

    while (found) {
        PTAC_OWNED PyObject *pair =
            PyObject_CallFunctionObjArgs(top_saved_hooks, Py_True, NULL);
        PTAC_OWNED PyObject *popped = NULL;

        if (pair == Py_None)
            break;
        if (pair)
            popped = PyObject_CallNoArgs(pop_saved_hooks);
        ptac_append(&found, popped ? Py_NewRef(pair) : NULL);
    }
    return found;
}

static bool push(PyObject *pair)
{
    PTAC_OWNED PyObject *pushed = PyObject_CallObject(push_saved_hooks, pair);

    return pushed;
}

/*
 * saved_hooks(ours) -> whether ours were there. They are put under all others: a pair
 * of functions, or None to take them out.
 */
PTAC_O(saved_hooks, ours)
{
    PTAC_OWNED PyObject *found = taken_down();
    bool done = found && (ours == Py_None || push(ours)), were_there = false;

    for (Py_ssize_t i = found ? PyList_Size(found) : 0; done && i-- > 0;) {
        PyObject *pair = PyList_GetItem(found, i);

        if (ptac_saved_is_pack(PyTuple_GetItem(pair, 0)))
            were_there = true;
        else
            done = push(pair);
    }
    return done ? PyBool_FromLong(were_there) : NULL;
}

/* saved_without_hooks(function) -> what it gives where this thread has no hooks */
PTAC_O(saved_without_hooks, function)
{
    PTAC_OWNED PyObject *found = taken_down();
    PyObject *result, *type, *value, *trace;

    if (!found)
        return NULL;
    result = PyObject_CallNoArgs(function);
    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = PyList_Size(found); i-- > 0;)
        if (!push(PyList_GetItem(found, i)))
            PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return result;
}
