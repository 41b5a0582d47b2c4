/*
 * python_dispatch.c - torch's Python dispatcher, by which torch.compile, torch.export
 * and make_fx trace.
 *
 * An OpOverload keeps the key that a call of it came to. torch.library empties what is
 * kept where Python registers a kernel, and not where C does. An operator that torch
 * has for all devices under one key, such as copy_, comes to the key CPU as long as
 * ours is there; the next call would go to what lies there then, which is address 0.
 */
#include "bind/python/module/names.h"
#include "bind/python/module/pybind.h"

static void empty(PyObject *overload)
{
    PTAC_OWNED PyObject *kept = PyObject_GetAttr(overload, ptac_names._dispatch_cache);

    if (kept && PyDict_Check(kept))
        PyDict_Clear(kept);
}

void ptac_python_dispatch_forget(void)
{
    PTAC_OWNED PyObject *name = PyUnicode_FromString("torch._ops");
    PTAC_OWNED PyObject *module = name ? PyImport_GetModule(name) : NULL;
    PTAC_OWNED PyObject *overloads =
        module ? PyObject_GetAttr(module, ptac_names.cached_ops) : NULL;
    PTAC_OWNED PyObject *each = overloads ? PyObject_GetIter(overloads) : NULL;
    PyObject *overload;

    while (each && (overload = PyIter_Next(each))) {
        empty(overload);
        Py_DECREF(overload);
    }
    PyErr_Clear();
}
