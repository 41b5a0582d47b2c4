/*
 * custom_chain.c - trying the program's own fusions.
 */
#include "bind/python/callpath/chain/custom_chain.h"

#include "bind/python/callpath/call/leaf.h"

static PyObject *chains; /* a list of (tuple of classes, function), or NULL */

bool ptac_has_custom_chains(void)
{
    return chains && PyList_Size(chains) > 0;
}

/* The modules are exactly of these classes, and calling them is calling forward. */
static bool fits(const ptac_chain_start *start, PyObject *classes)
{
    const Py_ssize_t n = PyTuple_Size(classes);

    if (start->at + n > PyList_Size(start->modules))
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *module = PyList_GetItem(start->modules, start->at + i);

        if ((PyObject *)Py_TYPE(module) != PyTuple_GetItem(classes, i) ||
            !ptac_module_is_alone(module))
            return false;
    }
    return true;
}

static PyObject *call(PyObject *function, const ptac_chain_start *start, Py_ssize_t n)
{
    PyObject *args[PTAC_LONGEST_CUSTOM_CHAIN + 1];

    for (Py_ssize_t i = 0; i < n; i++)
        args[i] = PyList_GetItem(start->modules, start->at + i);
    args[n] = start->x;
    return ptac_vectorcall(function, args, (size_t)(n + 1), NULL);
}

PyObject *ptac_custom_chain(const ptac_chain_start *start, Py_ssize_t *n)
{
    PTAC_OWNED PyObject *tried = Py_NewRef(chains); /* a function may change them */

    for (Py_ssize_t i = 0; i < PyList_Size(tried); i++) {
        PyObject *chain = PyList_GetItem(tried, i), *result;

        *n = PyTuple_Size(PyTuple_GetItem(chain, 0));
        if (!fits(start, PyTuple_GetItem(chain, 0)))
            continue;
        result = call(PyTuple_GetItem(chain, 1), start, *n);
        if (result != Py_NotImplemented)
            return result;
        Py_DECREF(result);
    }
    Py_RETURN_NONE;
}

/*
 * custom_chains_install([(classes, function)]): which fusions there are from now on, in
 * the order in which they are tried. function(*modules, x) gives NotImplemented for
 * what it does not take.
 */
PTAC_O(custom_chains_install, list)
{
    if (!PyList_Check(list))
        return PyErr_Format(PyExc_TypeError, "fusions are a list");
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *classes, *function;

        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "O!O", &PyTuple_Type, &classes,
                              &function))
            return NULL;
        if (PyTuple_Size(classes) < 1 ||
            PyTuple_Size(classes) > PTAC_LONGEST_CUSTOM_CHAIN)
            return PyErr_Format(PyExc_ValueError, "a pattern is one to %d classes",
                                PTAC_LONGEST_CUSTOM_CHAIN);
    }
    ptac_keep(&chains, list);
    Py_RETURN_NONE;
}
