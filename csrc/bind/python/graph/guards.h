/*
 * guards.h - whether a call is like the one that was recorded.
 */
#ifndef PTAC_BIND_PYTHON_GRAPH_GUARDS_H
#define PTAC_BIND_PYTHON_GRAPH_GUARDS_H

#include "bind/python/graph/bindings.h"

/* Where a module has tensors. */
enum {
    PTAC_PARAMETERS,
    PTAC_BUFFERS,
    PTAC_N_HOMES,
};

/* A module of the tree, as it was. All are owned, but for a module that is lent. */
typedef struct ptac_module_guard {
    PyObject *module;
    bool is_lent;
    PyTypeObject *type;
    uint32_t version;                              /* of the class */
    PyObject *attributes;                          /* a copy of its dictionary */
    uint64_t attributes_version, children_version; /* when they were last found so */
    uint64_t homes_version[PTAC_N_HOMES];
    PyObject **children;
    int n_children;
    uint64_t
        slots[PTAC_N_HOMES]; /* how many tensors each home has, and which are None */
    PyObject *homes[PTAC_N_HOMES]; /* borrowed, since the module was last found so */
} ptac_module_guard;

typedef struct ptac_guards {
    ptac_module_guard *modules;
    int n_modules;
    ptac_bindings bindings;
} ptac_guards;

/* What stands in the _compiled_call_impl of optimized modules: see planned.c. */
bool ptac_is_planned(PyObject *object);

/*
 * Remember a list of modules, and one of names (bindings.h), as they are now. False: an
 * exception is set. They keep all alive but the module lent, if there is any: whoever
 * asks whether they hold sees to that.
 */
bool ptac_guards_read(ptac_guards *guards, PyObject *modules, PyObject *bindings,
                      const PyObject *lent);
void ptac_guards_clear(ptac_guards *guards);
int ptac_guards_traverse(const ptac_guards *guards, visitproc visit, void *arg);

/*
 * All modules do what they did, their homes are known, and names stand for what they
 * did; no exception is set.
 */
bool ptac_guards_hold(ptac_guards *guards);

/* Tensors that have been found, borrowed, of which there is room for most. */
typedef struct ptac_found {
    PyObject **tensors;
    int n, most;
} ptac_found;

static inline bool ptac_found_add(ptac_found *found, PyObject *tensor)
{
    if (!tensor || found->n == found->most || !ptac_is_plain(tensor))
        return false;
    found->tensors[found->n++] = tensor;
    return true;
}

/* What a call depends on beside its arguments and modules. */
typedef struct ptac_circumstances {
    uint64_t generation; /* of the chooser */
    int n_threads;
    bool with_grad, is_lowered, without_onednn;
    PyObject *default_dtype; /* compared alone, and never followed */
} ptac_circumstances;

ptac_circumstances ptac_circumstances_now(void);
bool ptac_circumstances_are(const ptac_circumstances *a, const ptac_circumstances *b);

/*
 * Whether arguments are as described, and the plain tensors among them, in order. A
 * description is a tuple:
 *
 *   (0,)                      a tensor
 *   (1, object)               that object, or one of its type that equals it
 *   (2, type, (child, ...))   a list or tuple of these
 *   (3, (key, ...), (child, ...))   a dictionary with these keys and values, in order
 *   (4, object)               that very object
 *   (5,)                      a tensor that has no attributes but torch's
 *
 * NULL stands for an empty dictionary. No exception is set, and nothing of the program
 * is called: objects are of Python's own types, or torch's.
 */
bool ptac_arguments_match(PyObject *described, PyObject *object, ptac_found *found);

#endif
