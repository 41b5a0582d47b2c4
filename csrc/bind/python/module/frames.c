/*
 * frames.c - what other threads are in the middle of.
 *
 * In one go, while the interpreter's lock is held. Between two steps of Python code the
 * threads run on: what is said to be the caller of a frame may be no frame by then, as
 * was seen in CPython 3.11 while threads traced.
 */
#include "bind/python/module/names.h"
#include "bind/python/module/pybind.h"

/* How many of a frame and its callers run this code; -1 with an exception set. */
static long count(PyObject *frame, PyObject *code)
{
    long n = 0;

    Py_INCREF(frame);
    while (frame && frame != Py_None) {
        PTAC_OWNED PyObject *runs = PyObject_GetAttr(frame, ptac_names.f_code);
        PyObject *caller = PyObject_GetAttr(frame, ptac_names.f_back);

        n += runs == code;
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    return PyErr_Occurred() ? -1 : n;
}

/* frames_of(code) -> how many frames of all threads run it */
PTAC_O(frames_of, code)
{
    PyObject *current = PySys_GetObject("_current_frames"); /* borrowed */
    PTAC_OWNED PyObject *frames = current ? PyObject_CallNoArgs(current) : NULL;
    PyObject *thread, *frame;
    Py_ssize_t at = 0;
    long n = 0;

    if (!current)
        return PyErr_Format(PyExc_RuntimeError, "sys._current_frames is gone");
    while (frames && PyDict_Next(frames, &at, &thread, &frame)) {
        const long of_thread = count(frame, code);

        if (of_thread < 0)
            return NULL;
        n += of_thread;
    }
    return frames ? PyLong_FromLong(n) : NULL;
}
