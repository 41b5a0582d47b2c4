/*
 * module_guards.c - what calling a module goes through, remembered.
 */
#include "bind/python/callpath/module_guards.h"

enum {
    MOST_WATCHED = 32,
    N_HOOKS = 4,
    N_QUIET = 7,
    N_GLOBAL = 4,
};

/*
 * What a name means to an owner: an attribute of a class, or an item of a dictionary.
 * With None for the value, the owner must not have the name.
 */
typedef struct watched {
    PyObject *owner, *name, *value;
} watched;

/* A class of modules, and what calling one of them goes through. */
typedef struct known_class {
    PyTypeObject *type;
    watched watched[MOST_WATCHED];
    int n_watched;
} known_class;

static const char *const kind_names[] = {
#define KIND(kind, name) name,
    PTAC_MODULE_KINDS(KIND)
#undef KIND
};

static known_class known[PTAC_N_MODULES];
static PyObject *global_hooks[N_GLOBAL]; /* dictionaries that must be empty */

/*
 * Instance attributes: the first four hold hooks, the others change what a call does.
 */
static PyObject *const *const quiet[N_QUIET] = {
    &ptac_names._forward_hooks,  &ptac_names._forward_pre_hooks,
    &ptac_names._backward_hooks, &ptac_names._backward_pre_hooks,
    &ptac_names.forward,         &ptac_names._compiled_call_impl,
    &ptac_names._call_impl};

static bool is_as_remembered(const watched *w)
{
    PyObject *value;

    if (w->value == Py_None)
        return PySequence_Contains(w->owner, w->name) == 0;
    if (PyDict_Check(w->owner))
        return PyDict_GetItemWithError(w->owner, w->name) == w->value;
    value = PyObject_GetAttr(w->owner, w->name);
    Py_XDECREF(value);
    return value == w->value;
}

/* Nobody has changed what calling a module of this class goes through. */
static bool is_unchanged(const known_class *class)
{
    for (int i = 0; i < class->n_watched; i++)
        if (!is_as_remembered(&class->watched[i]))
            return false;
    return true;
}

bool ptac_modules_are_unheard(void)
{
    for (int i = 0; i < N_GLOBAL; i++)
        if (!global_hooks[i] || PyDict_Size(global_hooks[i]) != 0)
            return false;
    return true;
}

/* The module of these attributes has no method and no hook of its own. */
static bool is_bare(const known_class *class, PyObject *attributes)
{
    for (int i = 0; i < class->n_watched; i++)
        if (class->watched[i].owner == (PyObject *)class->type &&
            PyDict_GetItemWithError(attributes, class->watched[i].name))
            return false;
    for (int i = 0; i < N_QUIET; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, *quiet[i]);
        int is_set = value && value != Py_None;

        if (is_set && i < N_HOOKS) {
            Py_INCREF(value);
            is_set = PyObject_IsTrue(value);
            Py_DECREF(value);
        }
        if (is_set)
            return false;
    }
    return !PyErr_Occurred();
}

ptac_module_kind ptac_module_kind_of(PyObject *module)
{
    int kind = 0;

    while (kind < PTAC_N_MODULES && known[kind].type != Py_TYPE(module))
        kind++;
    return (ptac_module_kind)kind;
}

PyObject *ptac_module_attributes(PyObject *module, ptac_module_kind kind)
{
    PyObject *attributes = NULL;

    if (Py_TYPE(module) == known[kind].type && is_unchanged(&known[kind]))
        attributes = PyObject_GenericGetDict(module, NULL);
    if (attributes && !is_bare(&known[kind], attributes))
        Py_CLEAR(attributes);
    PyErr_Clear();
    return attributes;
}

/* What a module of these attributes finds under this name in that dictionary. */
static PyObject *own_tensor(PyObject *attributes, PyObject *home, PyObject *name)
{
    PyObject *tensors = PyDict_GetItemWithError(attributes, home), *found;

    if (!tensors || !PyDict_CheckExact(tensors) ||
        PyDict_GetItemWithError(attributes, name))
        return NULL;
    found = PyDict_GetItemWithError(tensors, name);
    Py_XINCREF(found);
    return found;
}

PyObject *ptac_module_parameter(PyObject *attributes, PyObject *name)
{
    return own_tensor(attributes, ptac_names._parameters, name);
}

PyObject *ptac_module_buffer(PyObject *attributes, PyObject *name)
{
    return own_tensor(attributes, ptac_names._buffers, name);
}

static void forget(known_class *class)
{
    Py_CLEAR(class->type);
    while (class->n_watched > 0) {
        watched *w = &class->watched[--class->n_watched];

        Py_CLEAR(w->owner);
        Py_CLEAR(w->name);
        Py_CLEAR(w->value);
    }
}

/* The place for a class of this name; NULL with ValueError set. */
static known_class *place_of(PyObject *type)
{
    PTAC_OWNED PyObject *name = PyObject_GetAttrString(type, "__name__");

    if (!name)
        return NULL;
    for (int kind = 0; kind < PTAC_N_MODULES; kind++)
        if (PyUnicode_CompareWithASCIIString(name, kind_names[kind]) == 0)
            return &known[kind];
    PyErr_Format(PyExc_ValueError, "no kind of module is called %U", name);
    return NULL;
}

/* One entry of module_guards_install()'s list. */
static bool remember(PyObject *entry)
{
    PyObject *type, *list;
    known_class *class;

    if (!PyArg_ParseTuple(entry, "O!O!", &PyType_Type, &type, &PyList_Type, &list))
        return false;
    class = place_of(type);
    if (!class)
        return false;
    if (PyList_Size(list) > MOST_WATCHED)
        return PyErr_Format(PyExc_ValueError, "more than can be watched");
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        watched w;

        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "OUO", &w.owner, &w.name,
                              &w.value)) {
            forget(class);
            return false;
        }
        Py_INCREF(w.owner);
        Py_INCREF(w.name);
        Py_INCREF(w.value);
        PyUnicode_InternInPlace(&w.name);
        class->watched[class->n_watched++] = w;
    }
    class->type = (PyTypeObject *)Py_NewRef(type); /* known from here on */
    return true;
}

/*
 * module_guards_install([(class, [(owner, name, value)])], [global hook dictionaries]).
 * Takes the place of what was installed before.
 */
PTAC_VARARGS(module_guards_install)
{
    PyObject *classes, *hooks;

    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &classes, &PyList_Type, &hooks))
        return NULL;
    if (PyList_Size(hooks) != N_GLOBAL)
        return PyErr_Format(PyExc_ValueError, "wrong number of hooks");
    for (int i = 0; i < PTAC_N_MODULES; i++)
        forget(&known[i]);
    for (int i = 0; i < N_GLOBAL; i++)
        ptac_keep(&global_hooks[i], PyList_GetItem(hooks, i));
    for (Py_ssize_t i = 0; i < PyList_Size(classes); i++)
        if (!remember(PyList_GetItem(classes, i)))
            return NULL;
    Py_RETURN_NONE;
}
