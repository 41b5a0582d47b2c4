/*
 * leaf.h - modules whose forward is one call of a function of torch's.
 *
 * Such a forward is known by what it calls: the function, and which attributes of the
 * module go behind the input. The function is called as Python would have called it, so
 * that autograd, autocast, transforms, modes and profilers see what they always see.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_CALL_LEAF_H
#define PTAC_BIND_PYTHON_CALLPATH_CALL_LEAF_H

#include "bind/python/callpath/module_guards.h"
#include "bind/python/interpreter/vectorcall.h"

/*
 * What a known module of these attributes makes of x, without its forward; None where
 * that has to be called. No hook listens to the module or to all modules.
 */
PyObject *ptac_leaf_call(ptac_module_kind kind, PyObject *attributes, PyObject *x);

/*
 * Calling module(x) from C: by way of the leaf where it is one and nobody would notice,
 * else as Python does.
 */
PyObject *ptac_module_call(PyObject *module, PyObject *x);

/* Calling the module is calling the forward of its class, and nobody looks on. */
bool ptac_module_is_alone(PyObject *module);

/* nn.Sequential.forward of these children, see sequential.c. */
PyObject *ptac_sequential(PyObject *children, PyObject *input);

#endif
