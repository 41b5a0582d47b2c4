/*
 * conv_chain.h - a Conv2d in nn.Sequential together with what follows it.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_CONV_CHAIN_H
#define PTAC_BIND_PYTHON_CALLPATH_CONV_CHAIN_H

#include "bind/python/callpath/module_guards.h"

/*
 * What a Conv2d of the list and, behind it, a BatchNorm2d in eval mode, a ReLU and a
 * 2x2 MaxPool2d make of x, as far as these follow; *n is how many modules that was.
 * None where the Conv2d has to be called: where a gradient is asked for, where nothing
 * of that kind follows, and where no row takes the convolution.
 */
PyObject *ptac_try_conv_chain(PyObject *modules, Py_ssize_t at, PyObject *x,
                              Py_ssize_t *n);

#endif
