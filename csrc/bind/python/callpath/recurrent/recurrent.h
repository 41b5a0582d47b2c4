/*
 * recurrent.h - what the call paths of recurrent layers have in common.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_RECURRENT_RECURRENT_H
#define PTAC_BIND_PYTHON_CALLPATH_RECURRENT_RECURRENT_H

#include "bind/python/callpath/lean.h"
#include "bind/torch/rows/recurrent/layers.h"

/* Item i of a list or tuple, borrowed, NULL of anything else; and how many, -1. */
PyObject *ptac_item(PyObject *items, Py_ssize_t i);
Py_ssize_t ptac_n_items(PyObject *items);

/*
 * items as a tuple where they are a list, which another thread may change while we
 * compute without the GIL; else themselves. Owned; NULL with an exception set.
 */
PyObject *ptac_held_items(PyObject *items);

/* PTAC_TAKE with the tensor, or why it is none of ours. */
ptac_reason ptac_borrow_plain(PyObject *object, at_tensor *tensor);

/* From h or (h, c); and whether any wants a gradient, -1 with an exception set. */
ptac_reason ptac_recurrent_states(ptac_op op, PyObject *states, at_tensor *h,
                                  at_tensor *c);
int ptac_recurrent_wants(PyObject *states);

/*
 * 1 where ours computes; 0 where stock does, which is then counted: for that reason, or
 * because hooks want what a gradient would save, where wants says it is asked for.
 * -1 with an exception set, also where wants is.
 */
int ptac_recurrent_goes_on(ptac_op op, ptac_reason why, int wants);

/* States may be expanded, or views with gaps: they are small, and a copy is made. */
ptac_reason ptac_dense_state(at_tensor *state, at_tensor *copy);

/* n owned tensors as a tuple, None for those that are not there; all are taken over. */
PyObject *ptac_wrap_all(at_tensor *made, int n);

#endif
