/*
 * vectorcall.h - CPython's protocol for calls without a tuple, which the stable ABI of
 * 3.11 does not list. Its functions are exported by all versions and found by name.
 */
#ifndef PTAC_BIND_PYTHON_INTERPRETER_VECTORCALL_H
#define PTAC_BIND_PYTHON_INTERPRETER_VECTORCALL_H

#include "bind/python/module/pybind.h"

typedef PyObject *(*ptac_vectorcall_fn)(PyObject *callable, PyObject *const *args,
                                        size_t n_args, PyObject *keywords);

/* Set in a count of arguments: the callee may write before the first one meanwhile. */
static const size_t ptac_vectorcall_offset = (size_t)1 << (8 * sizeof(size_t) - 1);

static inline Py_ssize_t ptac_vectorcall_count(size_t n_args)
{
    return (Py_ssize_t)(n_args & ~ptac_vectorcall_offset);
}

/* PyObject_Vectorcall, and PyObject_VectorcallMethod of a name, self and arguments. */
extern ptac_vectorcall_fn ptac_vectorcall, ptac_vectorcall_method;

/* PyVectorcall_Function: how an object is called, or NULL. */
extern ptac_vectorcall_fn (*ptac_vectorcall_of)(PyObject *callable);

/* Looks for them; false where one is missing, and then none may be called. */
bool ptac_vectorcall_find(void);

#endif
