/*
 * sequential.c - nn.Sequential.forward, which sees what follows what.
 *
 * A layer and what follows it become one operator when all are known modules and nobody
 * could notice. Every other module is called as ever.
 */
#include "bind/python/callpath/call/leaf.h"
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/chain/custom_chain.h"
#include "bind/python/callpath/lean.h"
#include "bind/python/callpath/linear/mlp.h"

/* The modules of a Sequential that runs, and where it is. */
typedef struct place {
    PyObject *children; /* the live dictionary, which modules may change as they run */
    PyObject *modules;  /* a list of its values as they were seen */
    Py_ssize_t i, n, in_children;
    bool is_x_unseen; /* see ptac_chain_start */
} place;

/* See what modules have put in the place of the n_next next ones. */
static bool follow_changes(place *p, Py_ssize_t n_next)
{
    const Py_ssize_t end = ptac_least(p->n, p->i + n_next);
    Py_ssize_t at = p->in_children;
    PyObject *child;

    if (PyDict_Size(p->children) != p->n)
        return PyErr_Format(PyExc_RuntimeError,
                            "dictionary changed size during iteration");
    for (Py_ssize_t k = p->i; k < end; k++) {
        if (!PyDict_Next(p->children, &at, NULL, &child))
            return PyErr_Format(PyExc_RuntimeError,
                                "dictionary keys changed during iteration");
        if (child != PyList_GetItem(p->modules, k))
            PyList_SetItem(p->modules, k, Py_NewRef(child));
    }
    return true;
}

static ptac_module_kind kind_at(const place *p, Py_ssize_t i)
{
    return i < p->n ? ptac_module_kind_of(PyList_GetItem(p->modules, i))
                    : PTAC_N_MODULES;
}

/* By what the program has registered. */
static PyObject *try_custom(place *p, PyObject *x, Py_ssize_t *n)
{
    const ptac_chain_start start = {p->modules, p->i, x, p->is_x_unseen};

    if (!ptac_has_custom_chains() || ptac_has_function_mode())
        Py_RETURN_NONE;
    return follow_changes(p, PTAC_LONGEST_CUSTOM_CHAIN) ? ptac_custom_chain(&start, n)
                                                        : NULL;
}

/*
 * What the next module, and some behind it, make of x in one; *n is how many. None
 * where the module has to be called. Asked before each module: the one before may have
 * changed any of this.
 */
static PyObject *try_chain(place *p, PyObject *x, Py_ssize_t *n)
{
    const ptac_chain_start start = {p->modules, p->i, x, p->is_x_unseen};

    if (!ptac_chain_may_begin(PyList_GetItem(p->modules, p->i)) ||
        (p->i + 1 == p->n && !p->is_x_unseen) || !ptac_modules_are_unheard() ||
        ptac_has_function_mode())
        Py_RETURN_NONE;
    return follow_changes(p, PTAC_LONGEST_CHAIN) ? ptac_chain_run(&start, n) : NULL;
}

/* What is behind the next module asks whether anybody sees its x. */
static bool is_unseen_asked(const place *p)
{
    switch (kind_at(p, p->i + 1)) {
    case PTAC_MODULE_BATCH_NORM1D:
    case PTAC_MODULE_BATCH_NORM2D:
        return ptac_chooser_gate(PTAC_OP_BATCH_NORM_ACT) == PTAC_TAKE;
    case PTAC_MODULE_RELU:
        return kind_at(p, p->i + 2) == PTAC_MODULE_MAX_POOL2D &&
               ptac_chooser_gate(PTAC_OP_RELU_MAX_POOL2D) != PTAC_OFF;
    default:
        return false;
    }
}

/*
 * Whether the next module gives a tensor that nobody else gets to see, if it is torch's
 * own. Asked before it is called, since a hook may remove itself; and only where it
 * matters.
 */
static bool makes_unseen(const place *p)
{
    PyObject *module = PyList_GetItem(p->modules, p->i), *attributes;
    const ptac_module_kind kind = ptac_module_kind_of(module);

    if ((kind != PTAC_MODULE_LINEAR && kind != PTAC_MODULE_CONV2D &&
         kind != PTAC_MODULE_BATCH_NORM2D) ||
        !is_unseen_asked(p) || !ptac_modules_are_unheard())
        return false;
    attributes = ptac_module_attributes(module, kind);
    Py_XDECREF(attributes);
    return attributes;
}

PyObject *ptac_sequential(PyObject *children, PyObject *input)
{
    PTAC_OWNED PyObject *modules =
        PyDict_CheckExact(children)
            ? PyDict_Values(children)
            : PyErr_Format(PyExc_TypeError, "children are a plain dict");
    place p = {children, modules, .n = modules ? PyList_Size(modules) : 0};
    PyObject *x = modules ? Py_NewRef(input) : NULL;

    while (x && p.i < p.n) {
        Py_ssize_t n_done = 1;
        PyObject *y = try_custom(&p, x, &n_done);

        if (y == Py_None) {
            Py_DECREF(y);
            n_done = 1;
            y = try_chain(&p, x, &n_done);
        }
        p.is_x_unseen = y == Py_None && makes_unseen(&p);
        if (y == Py_None) {
            Py_DECREF(y);
            y = ptac_module_call(PyList_GetItem(modules, p.i), x);
            n_done = 1;
        }
        Py_DECREF(x);
        x = y;
        for (; n_done > 0; n_done--, p.i++)
            PyDict_Next(p.children, &p.in_children, NULL, NULL);
        if (x && !follow_changes(&p, 1))
            Py_CLEAR(x);
    }
    return x;
}

/*
 * sequential(children, input) -> what the modules of this plain dict make of input in
 * turn. module_guards_install() comes first.
 */
PTAC_ARGS(sequential, 2)
{
    return ptac_sequential(args[0], args[1]);
}
