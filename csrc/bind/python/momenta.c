/*
 * momenta.c - the momentum buffers that SGD's first step makes.
 */
#include "bind/python/gather.h"

/* A new momentum buffer like the parameter, put into its state; owned. */
static PyObject *new_momentum(PyObject *states, PyObject *param)
{
    at_tensor made = NULL;
    ptac_view view;

    ptac_view_of(ptac_borrow(param), &view);
    if (T.aoti_torch_empty_strided(view.n_dims, view.sizes, view.strides,
                                   ptac_torch_dtype_of(view.dtype), AT_DEVICE_CPU, 0,
                                   &made)) {
        PyErr_NoMemory();
        return NULL;
    }

    PyObject *buffer = ptac_wrap(made);
    PyObject *state = buffer ? PyObject_GetItem(states, param) : NULL;

    if (!state || PyObject_SetItem(state, ptac_s.momentum_buffer, buffer) < 0)
        Py_CLEAR(buffer);
    Py_XDECREF(state);
    return buffer;
}

/* Take the new buffers out of the states again, whatever exception is set. */
void ptac_forget_momenta(const ptac_gathering *g, PyObject *states)
{
    PyObject *type, *value, *trace;

    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; i < g->n_items; i++) {
        PyObject *state =
            g->items[i].is_first ? PyObject_GetItem(states, g->params[i]) : NULL;

        if (state)
            PyObject_DelItem(state, ptac_s.momentum_buffer);
        Py_XDECREF(state);
        PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
}

/* The buffers that a first step needs; all of them, or a Python exception is set. */
bool ptac_create_momenta(ptac_gathering *g, PyObject *states)
{
    for (Py_ssize_t i = 0; i < g->n_items; i++) {
        PyObject *buffer;

        if (!g->items[i].is_first)
            continue;
        buffer = new_momentum(states, g->params[i]);
        if (!buffer)
            return false;
        T.aoti_torch_get_data_ptr(ptac_borrow(buffer), &g->items[i].state[0]);
        g->written[g->n_written++] = (ptac_written){buffer, g->items[i].state[0]};
    }
    return true;
}
