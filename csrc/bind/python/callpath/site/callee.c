/*
 * callee.c - finding what a site is about to call, without calling anything of the
 * program's, but for a descriptor of Python's in a module's class, once.
 */
#include "bind/python/callpath/site/site.h"

#include "bind/python/callpath/entry/small.h"
#include "bind/python/callpath/module_guards.h"
#include "bind/python/interpreter/type_version.h"

#include <string.h>

enum { REMEMBERED = 256 }; /* a power of two */

PTAC_LENT(module_class)         /* nn.Module */
PTAC_LENT(stock_module_getattr) /* nn.Module.__getattr__ */
PTAC_LENT(f_relu)               /* torch.nn.functional.relu, while it is torch's */
PTAC_LENT(f_relu_code)
PTAC_LENT(torch_relu)
PTAC_LENT(relu_module)         /* an nn.ReLU that nobody else has */
PTAC_LENT(object_getattribute) /* object.__getattribute__ */

/* A class in a version in which modules of it find such a name in themselves alone. */
typedef struct seen {
    PyTypeObject *type;
    PyObject *name; /* interned, as long as the site that has it lives */
    uint32_t version;
} seen;

static seen remembered[REMEMBERED];

static bool finds_in_itself(PyTypeObject *type, PyObject *name)
{
    const uint32_t version = ptac_type_version(type);
    seen *place =
        &remembered[(((uintptr_t)type >> 5) ^ ((uintptr_t)name >> 4)) % REMEMBERED];

    if (version != 0 && place->type == type && place->name == name &&
        place->version == version)
        return true;
    if (!PyType_IsSubtype(type, (PyTypeObject *)module_class) ||
        !ptac_class_has(type, ptac_names.__getattribute__, object_getattribute) ||
        !ptac_class_has(type, ptac_names.__getattr__, stock_module_getattr) ||
        !ptac_class_has(type, name, NULL))
        return false;
    *place = (seen){type, name, ptac_type_version(type)};
    return true;
}

/* The item of a dictionary that must be a plain one; NULL: it has none. */
static PyObject *item_of(PyObject *dict, PyObject *name)
{
    return dict && PyDict_CheckExact(dict) ? PyDict_GetItemWithError(dict, name) : NULL;
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
        found = PyDict_GetItemWithError(attributes, name);
    if (attributes && !found)
        found = ptac_module_item(attributes, name);
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
        if (!PyDict_CheckExact(frame->globals))
            return NULL;
        found = PyDict_GetItemWithError(frame->globals, step->name);
        return found ? found : item_of(frame->builtins, step->name);
    }
}

/* Without running Python; NULL, without an exception, where that does not do. */
static PyObject *callee_of(const ptac_step *step, const ptac_frame *frame)
{
    PyObject *found = begin_of(step, frame);

    for (Py_ssize_t i = 0; found && i < PyTuple_Size(step->path); i++)
        found = attribute_of(found, PyTuple_GetItem(step->path, i));
    PyErr_Clear();
    return found;
}

bool ptac_site_is_f_relu(PyObject *code)
{
    return code == f_relu_code;
}

/* A function of Python's runs the code that it had. */
static bool has_its_code(PyObject *function)
{
    PyObject *code = PyObject_GetAttr(function, ptac_names.__code__);

    PyErr_Clear();
    Py_XDECREF(code);
    return code == f_relu_code;
}

/* What does as nn.ReLU does; F.relu alone takes an argument behind its input. */
static bool is_relu_function(const ptac_step *step, PyObject *callee)
{
    return callee == f_relu
               ? has_its_code(callee)
               : callee == torch_relu && callee != Py_None && !step->has_setting;
}

/* Of an activation; other modules may have an attribute of that name, too. */
static bool writes_in_place(PyObject *module)
{
    const ptac_module_kind kind = ptac_module_kind_of(module);
    PyObject *attributes;
    bool writes;

    if (kind != PTAC_MODULE_RELU && kind != PTAC_MODULE_RELU6 &&
        kind != PTAC_MODULE_SILU && kind != PTAC_MODULE_HARDSWISH)
        return false;
    attributes = PyObject_GenericGetDict(module, NULL);
    writes = attributes &&
             PyDict_GetItemWithError(attributes, ptac_names.inplace) == Py_True;
    Py_XDECREF(attributes);
    PyErr_Clear();
    return writes;
}

PyObject *ptac_site_module(const ptac_step *step, const ptac_frame *frame,
                           bool *in_place)
{
    PyObject *callee = callee_of(step, frame);
    const bool is_function = callee && is_relu_function(step, callee);

    if (is_function) {
        *in_place = step->in_place;
        callee = relu_module;
    } else if (!callee || step->has_setting) {
        return NULL;
    } else {
        *in_place = writes_in_place(callee);
    }
    /* Kernels that a program has registered are called. */
    return ptac_module_kind_of(callee) != PTAC_MODULE_RELU || ptac_relu_is_torchs()
               ? callee
               : NULL;
}

void ptac_site_forget_classes(void)
{
    memset(remembered, 0, sizeof remembered);
}
