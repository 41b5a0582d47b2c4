/*
 * bindings.h - what stands by a name, compared with what stood there.
 */
#ifndef PTAC_BIND_PYTHON_GRAPH_BINDINGS_H
#define PTAC_BIND_PYTHON_GRAPH_BINDINGS_H

#include "bind/python/module/pybind.h"

typedef enum ptac_binding_kind {
    PTAC_BOUND_IN_DICT,   /* by a name, or nothing is */
    PTAC_BOUND_IN_LIST,   /* by an index */
    PTAC_BOUND_IN_CELL,   /* of a closure */
    PTAC_BOUND_IN_OBJECT, /* among its own attributes; and its class is the same */
    PTAC_BOUND_LENGTH,    /* of a list, or a dictionary with the order of its keys */
    PTAC_BOUND_CLASS,     /* it is as it was */
    PTAC_BOUND_GEOMETRY,  /* of a plain tensor: type, sizes and strides */
    PTAC_BOUND_PARTS,     /* attributes that are computed, of a function, say */
} ptac_binding_kind;

typedef struct ptac_binding {
    ptac_binding_kind kind;
    PyObject *home, *name, *object; /* owned; object is NULL where nothing stood */
    PyTypeObject *type;             /* of an object, which lives as long as its class */
    Py_ssize_t at;                  /* in a list */
    uint64_t state;        /* a length with its order, a class's version, a geometry */
    uint64_t dict_version; /* when all that follow in this home were so */
} ptac_binding;

typedef struct ptac_bindings {
    ptac_binding *all;
    int n;
} ptac_bindings;

/*
 * Remember what is in a list of tuples, as it is now. False: an exception is set.
 *
 *   (dictionary, name, object)   and without the object: nothing stands there
 *   (list, index, object)
 *   (cell, None, object)
 *   (object, name, object)       of its own attributes; without: it has none so called
 *   (list or dictionary, None, None)   as many items, and keys in this order
 *   (class, None, None)          no attribute of it, or of a base, has changed
 *   (tensor, None, None)         plain, of this type, of these sizes and strides
 *   (object, (name, ...), (part, ...))   of C's attributes; each is that very object
 *
 * Bindings of one dictionary are looked at together where they stand together.
 */
bool ptac_bindings_read(ptac_bindings *bindings, PyObject *list);
void ptac_bindings_clear(ptac_bindings *bindings);
int ptac_bindings_traverse(const ptac_bindings *bindings, visitproc visit, void *arg);

/* All stand as they did; an exception may be set. */
bool ptac_bindings_hold(ptac_bindings *bindings);

#endif
