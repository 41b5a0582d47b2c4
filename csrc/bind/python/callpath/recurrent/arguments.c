/*
 * arguments.c - lists, states and weights as Python gives them to recurrent layers.
 */
#include "bind/python/callpath/recurrent/recurrent.h"

PyObject *ptac_item(PyObject *items, Py_ssize_t i)
{
    if (PyList_CheckExact(items))
        return i < PyList_Size(items) ? PyList_GetItem(items, i) : NULL;
    if (PyTuple_CheckExact(items))
        return i < PyTuple_Size(items) ? PyTuple_GetItem(items, i) : NULL;
    return NULL;
}

Py_ssize_t ptac_n_items(PyObject *items)
{
    if (PyList_CheckExact(items))
        return PyList_Size(items);
    return PyTuple_CheckExact(items) ? PyTuple_Size(items) : -1;
}

PyObject *ptac_held_items(PyObject *items)
{
    return PyList_CheckExact(items) ? PyList_AsTuple(items) : Py_NewRef(items);
}

ptac_reason ptac_borrow_plain(PyObject *object, at_tensor *tensor)
{
    if (!object)
        return PTAC_ARGUMENT;
    if (!ptac_is_plain(object))
        return ptac_why_not_plain(object);
    *tensor = ptac_borrow(object);
    return PTAC_TAKE;
}

ptac_reason ptac_dense_state(at_tensor *state, at_tensor *copy)
{
    ptac_view view;

    if (!*state)
        return PTAC_TAKE;
    ptac_view_of(*state, &view);
    if (ptac_view_is_contiguous(&view))
        return PTAC_TAKE;
    if (at_contiguous(at_share(*state), false, copy))
        return PTAC_MEMORY;
    *state = *copy;
    return PTAC_TAKE;
}

ptac_reason ptac_recurrent_states(ptac_op op, PyObject *states, at_tensor *h,
                                  at_tensor *c)
{
    ptac_reason why;

    *c = NULL;
    if (op != PTAC_OP_LSTM)
        return ptac_borrow_plain(states, h);
    if (ptac_n_items(states) != 2)
        return PTAC_ARGUMENT;
    why = ptac_borrow_plain(ptac_item(states, 0), h);
    return why ? why : ptac_borrow_plain(ptac_item(states, 1), c);
}

int ptac_recurrent_wants(PyObject *states)
{
    int wants = ptac_n_items(states) < 0 ? ptac_requires_grad(states) : 0;

    for (Py_ssize_t i = 0; !wants && i < ptac_n_items(states); i++)
        wants = ptac_requires_grad(ptac_item(states, i));
    return wants;
}

int ptac_recurrent_goes_on(ptac_op op, ptac_reason why, int wants)
{
    const int is_hooked = !why && wants > 0 ? ptac_saving_is_hooked() : 0;

    if (wants < 0 || is_hooked < 0 || PyErr_Occurred())
        return -1;
    if (is_hooked)
        why = PTAC_HOOKS;
    if (why)
        ptac_refuse(op, why);
    return !why;
}
