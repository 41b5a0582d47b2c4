/*
 * module_guards.h - modules of torch's that do what their class says and nothing else.
 *
 * Who runs two of them as one passes over everything that torch would have called in
 * between. So module_guards_install() remembers what that is, and a module counts as
 * known only while all of it is as it was then: its exact class, the class's methods,
 * the functions that these call, and no hooks anywhere.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_MODULE_GUARDS_H
#define PTAC_BIND_PYTHON_CALLPATH_MODULE_GUARDS_H

#include "bind/python/module/pybind.h"

typedef enum ptac_module_kind {
    PTAC_MODULE_LINEAR,
    PTAC_MODULE_CONV2D,
    PTAC_MODULE_BATCH_NORM2D,
    PTAC_MODULE_MAX_POOL2D,
    PTAC_MODULE_RELU,
    PTAC_MODULE_GELU,
    PTAC_MODULE_SILU,
    PTAC_MODULE_TANH,
    PTAC_MODULE_SIGMOID,
    PTAC_N_MODULES,
} ptac_module_kind;

/* The kind that a module's class has; PTAC_N_MODULES where it is none of these. */
ptac_module_kind ptac_module_kind_of(PyObject *module);

/*
 * The dictionary of a known module, owned. NULL, without an exception, where it has to
 * be called as ever.
 */
PyObject *ptac_module_attributes(PyObject *module, ptac_module_kind kind);

/* No hook listens to all modules. */
bool ptac_modules_are_unheard(void);

/*
 * A parameter or None, or the same of a buffer, owned, by an interned name; NULL,
 * without an exception, where the name means anything else.
 */
PyObject *ptac_module_parameter(PyObject *attributes, PyObject *name);
PyObject *ptac_module_buffer(PyObject *attributes, PyObject *name);

#endif
