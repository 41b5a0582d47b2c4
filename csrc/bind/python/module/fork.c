/*
 * fork.c - a fork waits for locks, whatever signals arrive meanwhile.
 *
 * What Python functions raise before a fork is printed, and the fork goes ahead. So the
 * waiting is done here, where handlers run only while a lock is waited for: what they
 * raise is kept, and raised in the main thread, the only one that they run in, after
 * the fork. A child, which got no signal, forgets it.
 */
#include "bind/python/callpath/site/window.h"

/* Written by who has all locks. */
static PyObject *interrupt;

static PyObject *taken_error(void)
{
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Take all locks, in their order. */
static PyObject *before_fork(PyObject *locks, PyObject *unused)
{
    PyObject *kept = NULL;

    for (Py_ssize_t i = 0; i < PyTuple_Size(locks); i++) {
        PyObject *lock = PyTuple_GetItem(locks, i), *taken;

        while (!(taken = PyObject_CallMethod(lock, "acquire", ""))) {
            PyObject *error = taken_error();

            if (kept) /* the first is handed on */
                Py_XDECREF(error);
            else
                kept = error;
        }
        Py_DECREF(taken);
    }
    Py_XDECREF(interrupt);
    interrupt = kept;
    Py_RETURN_NONE;
}

static int raise_interrupt(void *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

static void release(PyObject *locks)
{
    for (Py_ssize_t i = PyTuple_Size(locks); i-- > 0;) {
        PyObject *lock = PyTuple_GetItem(locks, i);
        PyObject *done = PyObject_CallMethod(lock, "release", "");

        if (!done)
            PyErr_WriteUnraisable(lock);
        Py_XDECREF(done);
    }
}

static PyObject *in_parent(PyObject *locks, PyObject *unused)
{
    PyObject *kept = interrupt;

    interrupt = NULL;
    release(locks);
    if (kept && Py_AddPendingCall(raise_interrupt, kept) < 0) {
        Py_DECREF(kept);
        PyErr_SetInterrupt(); /* too many calls wait: at least something is raised */
    }
    Py_RETURN_NONE;
}

static PyObject *in_child(PyObject *locks, PyObject *unused)
{
    Py_CLEAR(interrupt);
    ptac_sites_after_fork();
    ptac_windows_after_fork();
    release(locks);
    Py_RETURN_NONE;
}

/* fork_guards(locks) -> what os.register_at_fork() wants, so that forks wait. */
PTAC_O(fork_guards, locks)
{
    static PyMethodDef methods[] = {{"before_fork", before_fork, METH_NOARGS, NULL},
                                    {"in_parent", in_parent, METH_NOARGS, NULL},
                                    {"in_child", in_child, METH_NOARGS, NULL}};
    PyObject *guards[3];

    if (!PyTuple_Check(locks))
        return PyErr_Format(PyExc_TypeError, "a tuple is expected, not %R", locks);
    for (int i = 0; i < 3; i++)
        guards[i] = PyCFunction_New(&methods[i], locks);

    PyObject *made = guards[0] && guards[1] && guards[2]
                         ? PyTuple_Pack(3, guards[0], guards[1], guards[2])
                         : NULL;

    for (int i = 0; i < 3; i++)
        Py_XDECREF(guards[i]);
    return made;
}
