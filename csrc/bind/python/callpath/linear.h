/*
 * linear.h - the call path that linear and sequential share.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LINEAR_H
#define PTAC_BIND_PYTHON_CALLPATH_LINEAR_H

#include "bind/python/module/pybind.h"
#include "bind/torch/rows/linear_act.h"

/*
 * act(linear(x, w, bias)), or None where stock has to compute it. tensors are x, w, and
 * bias or None; anything else in their place leads to None as well. Refusals are not
 * counted where the caller goes on to a path that will ask again.
 */
PyObject *ptac_try_linear(PyObject *const tensors[3], ptac_act activation,
                          bool counts_refusals);

#endif
