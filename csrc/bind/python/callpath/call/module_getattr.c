/*
 * module_getattr.c - nn.Module.__getattr__ in C: self.layer, self.weight.
 *
 * Torch's is a Python function that looks a name up in three dictionaries, and it is
 * called for each parameter and each child that a forward mentions. CPython calls a
 * function by an address in its object, see entry/entry.h: writing another one there
 * leaves the function, its class and its code what they are for all who look at them.
 */
#include "bind/python/callpath/module_guards.h"
#include "bind/python/interpreter/tracing.h"
#include "bind/python/interpreter/vectorcall.h"

static PyObject *function; /* torch's, owned; NULL: never opened */
static ptac_vectorcall_fn stock;
static ptac_vectorcall_fn *place; /* in the function's object */

static PyObject *enter(PyObject *callable, PyObject *const *args, size_t n_args,
                       PyObject *keywords)
{
    PyObject *attributes, *found;

    if (ptac_vectorcall_count(n_args) != 2 || keywords || ptac_thread_is_traced() ||
        !PyUnicode_CheckExact(args[1]))
        return stock(callable, args, n_args, keywords);
    attributes = PyObject_GenericGetDict(args[0], NULL);
    found = attributes ? ptac_module_item(attributes, args[1]) : NULL;
    Py_XINCREF(found);
    Py_XDECREF(attributes);
    if (found)
        return found;
    PyErr_Clear();
    return stock(callable, args, n_args, keywords);
}

/* Where the object keeps the address: the one word that is it. */
static ptac_vectorcall_fn *place_in(PyObject *callable, ptac_vectorcall_fn address)
{
    PTAC_OWNED PyObject *size =
        PyObject_GetAttr((PyObject *)Py_TYPE(callable), ptac_names.__basicsize__);
    const size_t n_words = size ? PyLong_AsSize_t(size) / sizeof address : 0;
    ptac_vectorcall_fn *words = (ptac_vectorcall_fn *)(void *)callable, *found = NULL;
    int n = 0;

    PyErr_Clear();
    for (size_t i = 2; i < n_words && n_words < 64; i++) {
        if (words[i] == address) {
            found = &words[i];
            n++;
        }
    }
    return n == 1 ? found : NULL;
}

static void write_address(ptac_vectorcall_fn address)
{
    __atomic_store_n(place, address, __ATOMIC_RELEASE);
}

/*
 * module_getattr_open(nn.Module.__getattr__): calls of it come to us. Returns whether
 * they do.
 */
PTAC_O(module_getattr_open, callable)
{
    if (!ptac_vectorcall_find())
        Py_RETURN_FALSE;
    if (ptac_vectorcall_of(callable) == enter)
        Py_RETURN_TRUE;
    stock = ptac_vectorcall_of(callable);
    place = stock ? place_in(callable, stock) : NULL;
    if (!place)
        Py_RETURN_FALSE;
    ptac_keep(&function, callable);
    write_address(enter);
    if (ptac_vectorcall_of(callable) == enter)
        Py_RETURN_TRUE;
    write_address(stock);
    Py_RETURN_FALSE;
}

/* module_getattr_close(): torch's function is called again. */
PTAC_DOES(module_getattr_close, {
    if (function && ptac_vectorcall_of(function) == enter)
        write_address(stock);
})
