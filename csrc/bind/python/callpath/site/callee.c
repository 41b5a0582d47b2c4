/*
 * callee.c - finding what a site is about to call, without running Python.
 */
#include "bind/python/callpath/site/site.h"

#include "bind/python/interpreter/type_version.h"
#include "bind/python/module/names.h"

enum { REMEMBERED = 256 }; /* a power of two */

PTAC_LENT(module_class)         /* nn.Module */
PTAC_LENT(stock_module_getattr) /* nn.Module.__getattr__ */
PTAC_LENT(site_functions)       /* [(function, a module that does the same)] */
PTAC_LENT(object_getattribute)  /* object.__getattribute__ */

/* A class in a version in which modules of it find such a name in themselves alone. */
typedef struct seen {
    PyTypeObject *type;
    PyObject *name; /* interned, as long as the site that has it lives */
    uint32_t version;
} seen;

static seen remembered[REMEMBERED];

static bool class_has(PyTypeObject *type, PyObject *name, PyObject *expected)
{
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);

    if (!found)
        PyErr_Clear();
    Py_XDECREF(found);
    return found == expected;
}

static bool finds_in_itself(PyTypeObject *type, PyObject *name)
{
    const uint32_t version = ptac_type_version(type);
    seen *place =
        &remembered[(((uintptr_t)type >> 5) ^ ((uintptr_t)name >> 4)) % REMEMBERED];

    if (version != 0 && place->type == type && place->name == name &&
        place->version == version)
        return true;
    if (!PyType_IsSubtype(type, (PyTypeObject *)module_class) ||
        !class_has(type, ptac_names.__getattribute__, object_getattribute) ||
        !class_has(type, ptac_names.__getattr__, stock_module_getattr) ||
        !class_has(type, name, NULL))
        return false;
    *place = (seen){type, name, ptac_type_version(type)};
    return true;
}

/* The item of a dictionary that must be a plain one; NULL: it has none. */
static PyObject *item_of(PyObject *dict, PyObject *name)
{
    return dict && PyDict_CheckExact(dict) ? PyDict_GetItemWithError(dict, name) : NULL;
}

/* As nn.Module.__getattr__ looks for it. */
static PyObject *child_of(PyObject *attributes, PyObject *name)
{
    PyObject *const homes[] = {ptac_names._parameters, ptac_names._buffers,
                               ptac_names._modules};
    PyObject *found = PyDict_GetItemWithError(attributes, name);

    for (size_t i = 0; !found && i < sizeof homes / sizeof *homes; i++)
        found = item_of(item_of(attributes, homes[i]), name);
    return found;
}

static PyObject *attribute_of(PyObject *owner, PyObject *name)
{
    PyObject *attributes, *found = NULL;

    if (PyModule_CheckExact(owner))
        return item_of(PyModule_GetDict(owner), name);
    if (!finds_in_itself(Py_TYPE(owner), name))
        return NULL;
    attributes = PyObject_GenericGetDict(owner, NULL);
    if (attributes)
        found = child_of(attributes, name);
    Py_XDECREF(attributes); /* the module has it */
    return found;
}

static PyObject *begin_of(const ptac_step *step, const ptac_frame *frame)
{
    PyObject *found;

    switch (step->base) {
    case PTAC_ON_STACK: /* with nothing before it that would be an argument */
        return frame->slots[step->slot - 1] ? NULL : frame->slots[step->slot];
    case PTAC_NUMBER:
        return NULL;
    case PTAC_IN_LOCAL:
        return frame->slots[step->slot];
    default:
        found = item_of(frame->globals, step->name);
        return found ? found : item_of(frame->builtins, step->name);
    }
}

PyObject *ptac_site_callee(const ptac_step *step, const ptac_frame *frame)
{
    PyObject *found = begin_of(step, frame);

    for (Py_ssize_t i = 0; found && i < PyTuple_Size(step->path); i++)
        found = attribute_of(found, PyTuple_GetItem(step->path, i));
    PyErr_Clear();
    return found;
}

PyObject *ptac_site_module_of(PyObject *function)
{
    for (Py_ssize_t i = 0; i < PyList_Size(site_functions); i++) {
        PyObject *pair = PyList_GetItem(site_functions, i);

        if (PyTuple_GetItem(pair, 0) == function)
            return PyTuple_GetItem(pair, 1);
    }
    PyErr_Clear(); /* of None, which is no list */
    return NULL;
}
