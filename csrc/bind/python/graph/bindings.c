/*
 * bindings.c - names of the program, and what they stand for.
 */
#include "bind/python/graph/bindings.h"

#include "bind/python/interpreter/dict_version.h"
#include "bind/python/interpreter/type_version.h"
#include "bind/python/module/names.h"

enum {
    MOST_ORDERED = 64, /* keys whose order is looked at */
};

void ptac_bindings_clear(ptac_bindings *bindings)
{
    ptac_bindings old = *bindings;

    *bindings = (ptac_bindings){0};
    for (int i = 0; i < old.n; i++) {
        Py_CLEAR(old.all[i].home);
        Py_CLEAR(old.all[i].name);
        Py_CLEAR(old.all[i].object);
    }
    PyMem_Free(old.all);
}

int ptac_bindings_traverse(const ptac_bindings *bindings, visitproc visit, void *arg)
{
    for (int i = 0; i < bindings->n; i++) {
        Py_VISIT(bindings->all[i].home);
        Py_VISIT(bindings->all[i].object);
    }
    return 0;
}

/* How many items there are; of few in a dictionary also in which order. */
static uint64_t length_of(PyObject *home)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    PyObject *key, *item;
    Py_ssize_t at = 0;
    uint64_t hash;

    if (PyList_Check(home))
        return (uint64_t)PyList_Size(home);
    hash = (uint64_t)PyDict_Size(home);
    while (PyDict_Size(home) <= MOST_ORDERED && PyDict_Next(home, &at, &key, &item))
        hash = (hash + (uintptr_t)key) * golden;
    return hash;
}

static uint64_t mixed(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 32);
}

/* Another number for a tensor of another type, other sizes or strides; 0: not plain. */
static uint64_t geometry_of(PyObject *object)
{
    int64_t n = 0, *sizes, *strides;
    int32_t dtype;
    uint64_t hash;
    at_tensor tensor;

    if (!ptac_is_plain(object))
        return 0;
    tensor = ptac_borrow(object);
    if (T.aoti_torch_get_dim(tensor, &n) || T.aoti_torch_get_dtype(tensor, &dtype) ||
        T.aoti_torch_get_sizes(tensor, &sizes) ||
        T.aoti_torch_get_strides(tensor, &strides))
        return 0;
    hash = mixed((uint64_t)n, (uint64_t)dtype);
    for (int64_t i = 0; i < n; i++)
        hash = mixed(mixed(hash, (uint64_t)sizes[i]), (uint64_t)strides[i]);
    return hash | 1;
}

/* Each attribute is that part. Those of C's are asked for, which call nothing. */
static bool parts_are(PyObject *object, PyObject *names, PyObject *parts)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        PTAC_OWNED PyObject *now = PyObject_GetAttr(object, PyTuple_GetItem(names, i));

        if (!now || now != PyTuple_GetItem(parts, i))
            return false;
    }
    return true;
}

/* What stands there now, borrowed; NULL where nothing does. */
static PyObject *bound(const ptac_binding *b)
{
    PyObject *found = NULL, *attributes;

    switch (b->kind) {
    case PTAC_BOUND_IN_DICT:
        return PyDict_GetItemWithError(b->home, b->name);
    case PTAC_BOUND_IN_LIST:
        return b->at < PyList_Size(b->home) ? PyList_GetItem(b->home, b->at) : NULL;
    case PTAC_BOUND_IN_CELL:
        found = PyObject_GetAttr(b->home, ptac_names.cell_contents);
        Py_XDECREF(found); /* the cell has it */
        return found;
    case PTAC_BOUND_IN_OBJECT:
        attributes = PyObject_GenericGetDict(b->home, NULL);
        found = attributes ? PyDict_GetItemWithError(attributes, b->name) : NULL;
        Py_XDECREF(attributes); /* the object has it */
        return found;
    default:
        return NULL;
    }
}

static bool is_bound(const ptac_binding *b)
{
    switch (b->kind) {
    case PTAC_BOUND_LENGTH:
        return length_of(b->home) == b->state;
    case PTAC_BOUND_CLASS:
        return b->state != 0 && ptac_type_version((PyTypeObject *)b->home) == b->state;
    case PTAC_BOUND_GEOMETRY:
        return b->state != 0 && geometry_of(b->home) == b->state;
    case PTAC_BOUND_PARTS:
        return Py_TYPE(b->home) == b->type && parts_are(b->home, b->name, b->object);
    case PTAC_BOUND_IN_OBJECT:
        return Py_TYPE(b->home) == b->type && bound(b) == b->object;
    default:
        return bound(b) == b->object;
    }
}

static bool is_in(const ptac_binding *b, PyObject *dict)
{
    return b->kind == PTAC_BOUND_IN_DICT && b->home == dict;
}

bool ptac_bindings_hold(ptac_bindings *bindings)
{
    for (int i = 0; i < bindings->n;) {
        ptac_binding *first = &bindings->all[i];
        const bool is_of_dict = first->kind == PTAC_BOUND_IN_DICT;
        const uint64_t now = is_of_dict ? ptac_dict_version(first->home) : 0;
        const bool is_settled = now != 0 && now == first->dict_version;

        do {
            if (!is_settled && !is_bound(&bindings->all[i]))
                return false;
            i++;
        } while (is_of_dict && i < bindings->n &&
                 is_in(&bindings->all[i], first->home));
        first->dict_version = now;
    }
    return true;
}

static ptac_binding_kind kind_of(PyObject *home, PyObject *name)
{
    if (PyList_Check(home))
        return name == Py_None ? PTAC_BOUND_LENGTH : PTAC_BOUND_IN_LIST;
    if (PyDict_Check(home))
        return name == Py_None ? PTAC_BOUND_LENGTH : PTAC_BOUND_IN_DICT;
    if (PyTuple_Check(name))
        return PTAC_BOUND_PARTS;
    if (name != Py_None)
        return PTAC_BOUND_IN_OBJECT;
    if (ptac_is_plain(home))
        return PTAC_BOUND_GEOMETRY;
    return PyType_Check(home) ? PTAC_BOUND_CLASS : PTAC_BOUND_IN_CELL;
}

static bool read_binding(ptac_binding *b, PyObject *tuple)
{
    PyObject *home, *name, *object = NULL;

    if (!PyArg_ParseTuple(tuple, "OO|O", &home, &name, &object))
        return false;
    b->kind = kind_of(home, name);
    b->home = Py_NewRef(home);
    b->type = Py_TYPE(home);
    if (b->kind == PTAC_BOUND_PARTS && (!object || !PyTuple_Check(object) ||
                                        PyTuple_Size(object) != PyTuple_Size(name)))
        return PyErr_Format(PyExc_TypeError, "a part for each name is expected");
    if (b->kind == PTAC_BOUND_LENGTH) {
        b->state = length_of(home);
    } else if (b->kind == PTAC_BOUND_GEOMETRY) {
        b->state = geometry_of(home);
    } else if (b->kind == PTAC_BOUND_CLASS) {
        ptac_class_has((PyTypeObject *)home, ptac_names.forward, NULL); /* a number */
        b->state = ptac_type_version((PyTypeObject *)home);
    } else {
        b->name = Py_NewRef(name);
        b->object = Py_XNewRef(object);
        b->at = b->kind == PTAC_BOUND_IN_LIST ? PyLong_AsSsize_t(name) : 0;
    }
    return !PyErr_Occurred();
}

bool ptac_bindings_read(ptac_bindings *bindings, PyObject *list)
{
    const Py_ssize_t n = PyList_Size(list);

    bindings->all = PyMem_Calloc((size_t)n + 1, sizeof *bindings->all);
    if (!bindings->all)
        return PyErr_NoMemory();
    while (bindings->n < n) {
        ptac_binding *b = &bindings->all[bindings->n++];

        if (!read_binding(b, PyList_GetItem(list, bindings->n - 1)))
            return false;
    }
    return true;
}
