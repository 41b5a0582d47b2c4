/*
 * recurrent.h - what the call paths of recurrent layers have in common.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_RECURRENT_RECURRENT_H
#define PTAC_BIND_PYTHON_CALLPATH_RECURRENT_RECURRENT_H

#include "bind/python/callpath/lean.h"
#include "bind/torch/rows/recurrent/layers.h"

/* n owned tensors as a tuple, None for those that are not there; all are taken over. */
PyObject *ptac_wrap_all(at_tensor *made, int n);

#endif
