/*
 * small.h - what an operator of Python's does to a tensor, as a call of small_pointwise.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_ENTRY_SMALL_H
#define PTAC_BIND_PYTHON_CALLPATH_ENTRY_SMALL_H

#include "bind/python/module/pybind.h"
#include "ops/pointwise/small.h"

/* The function of a kind is entered, and leads to torch's own kernel. */
bool ptac_small_is_torchs(ptac_small_kind kind);

/*
 * x + number and so on, by the planner's code of it (fusion/sites/bytecode.py). False
 * where the class has another operator, or the number is none that torch takes.
 */
bool ptac_small_of_operator(int code, PyTypeObject *type, PyObject *number,
                            ptac_small *small);

#endif
