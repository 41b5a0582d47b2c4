/*
 * held.h - what a node of autograd's keeps of a tensor that it saved.
 */
#ifndef PTAC_BIND_PYTHON_SAVED_HELD_H
#define PTAC_BIND_PYTHON_SAVED_HELD_H

#include "bind/python/module/pybind.h"

typedef struct ptac_held {
    PyObject head;
    PyObject *tensor;   /* what was saved, or shares its memory and version; or NULL */
    PyObject *origin;   /* a weak reference to what was saved, where that is not it */
    PyObject *box;      /* the package's, for large tensors */
    PyObject *geometry; /* what saved_release() was given with the tensor */
    PyObject *weakrefs;
    long long version;
    bool was_leaf;
} ptac_held;

/* NULL until it has been prepared. */
extern PyTypeObject *ptac_held_type;

/* Whether the type is there; an exception is set where not. */
bool ptac_held_prepare(void);

#endif
