/*
 * module_guards.c - what calling a module goes through, remembered.
 */
#include "bind/python/callpath/module_guards.h"

#include "bind/python/interpreter/type_version.h"

#include <string.h>

enum {
    MOST_WATCHED = 64,
    MOST_METHODS = 8,
    N_HOOKS = 4,
    N_OTHERS = 2,
    N_GLOBAL = 4,
    PLACES = 128, /* of a table by class: a power of two, not half full */
};

/*
 * What a name means to an owner: an attribute of a class, or an item of a dictionary.
 * With None for the value, the owner must not have the name.
 */
typedef struct watched {
    PyObject *owner, *name, *value;
} watched;

/*
 * A class of modules, and what calling one of them goes through: first what lies
 * elsewhere, then the class's own, of which its version says that it is unchanged.
 */
typedef struct known_class {
    PyTypeObject *type;
    watched watched[MOST_WATCHED];
    int n_watched, n_elsewhere;
    PyObject
        *methods[MOST_METHODS]; /* names that no module may have itself, borrowed */
    int n_methods;
    uint32_t version; /* in which all was as remembered; 0: look */
} known_class;

static const char *const kind_names[] = {
#define KIND(kind, name) name,
    PTAC_MODULE_KINDS(KIND)
#undef KIND
};

static known_class known[PTAC_N_MODULES];
static unsigned char places[PLACES];     /* 1 + kind; 0: free */
static PyObject *global_hooks[N_GLOBAL]; /* dictionaries that must be empty */

/* Attributes of a module: dictionaries of hooks, and what changes what a call does. */
static PyObject *const *const hooks[N_HOOKS] = {
    &ptac_names._forward_hooks, &ptac_names._forward_pre_hooks,
    &ptac_names._backward_hooks, &ptac_names._backward_pre_hooks};
static PyObject *const *const others[N_OTHERS] = {&ptac_names._compiled_call_impl,
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

static bool are_as_remembered(const known_class *class, int begin, int end)
{
    for (int i = begin; i < end; i++)
        if (!is_as_remembered(&class->watched[i]))
            return false;
    return true;
}

/* Nobody has changed what calling a module of this class goes through. */
static bool is_unchanged(known_class *class)
{
    const uint32_t version = ptac_type_version(class->type);

    if (!are_as_remembered(class, 0, class->n_elsewhere))
        return false;
    if (version != 0 && version == class->version)
        return true;
    if (!are_as_remembered(class, class->n_elsewhere, class->n_watched))
        return false;
    class->version = ptac_type_version(class->type);
    return true;
}

bool ptac_modules_are_unheard(void)
{
    for (int i = 0; i < N_GLOBAL; i++)
        if (!global_hooks[i] || PyDict_Size(global_hooks[i]) != 0)
            return false;
    return true;
}

/* A dictionary of hooks that has one, or anything else that is not None or false. */
static bool is_set(PyObject *value)
{
    int truth;

    if (PyDict_Check(value))
        return PyDict_Size(value) != 0;
    Py_INCREF(value);
    truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth != 0;
}

bool ptac_module_is_quiet(PyObject *attributes)
{
    for (int i = 0; i < N_HOOKS; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, *hooks[i]);

        if (!value || is_set(value))
            return false;
    }
    for (int i = 0; i < N_OTHERS; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, *others[i]);

        if (value && value != Py_None)
            return false;
    }
    return true;
}

bool ptac_module_has_own_forward(PyObject *attributes)
{
    return PyDict_GetItemWithError(attributes, ptac_names.forward);
}

/* The module of these attributes has no method and no hook of its own. */
static bool is_bare(const known_class *class, PyObject *attributes)
{
    for (int i = 0; i < class->n_methods; i++)
        if (PyDict_GetItemWithError(attributes, class->methods[i]))
            return false;
    return ptac_module_is_quiet(attributes) && !PyErr_Occurred();
}

static unsigned place_of_type(PyTypeObject *type)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;

    return (unsigned)((uint64_t)(uintptr_t)type * golden >> 57) % PLACES;
}

ptac_module_kind ptac_module_kind_of(PyObject *module)
{
    unsigned at = place_of_type(Py_TYPE(module));

    for (; places[at]; at = (at + 1) % PLACES)
        if (known[places[at] - 1].type == Py_TYPE(module))
            return (ptac_module_kind)(places[at] - 1);
    return PTAC_N_MODULES;
}

PyObject *ptac_module_attributes(PyObject *module, ptac_module_kind kind)
{
    PyObject *attributes = NULL;

    if (kind == PTAC_N_MODULES)
        return NULL;
    if (Py_TYPE(module) == known[kind].type && is_unchanged(&known[kind]))
        attributes = PyObject_GenericGetDict(module, NULL);
    if (attributes && !is_bare(&known[kind], attributes))
        Py_CLEAR(attributes);
    PyErr_Clear();
    return attributes;
}

PyObject *ptac_module_item(PyObject *attributes, PyObject *name)
{
    PyObject *const homes[] = {ptac_names._parameters, ptac_names._buffers,
                               ptac_names._modules};

    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        PyObject *home = PyDict_GetItemWithError(attributes, homes[i]);
        PyObject *found = home && PyDict_CheckExact(home)
                              ? PyDict_GetItemWithError(home, name)
                              : NULL;

        if (found || (home && !PyDict_CheckExact(home)))
            return found;
    }
    return NULL;
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

const char *ptac_module_kind_name(ptac_module_kind kind)
{
    return kind < PTAC_N_MODULES ? kind_names[kind] : "?";
}

static void forget(known_class *class)
{
    Py_CLEAR(class->type);
    class->version = 0;
    class->n_elsewhere = class->n_methods = 0;
    while (class->n_watched > 0) {
        watched *w = &class->watched[--class->n_watched];

        Py_CLEAR(w->owner);
        Py_CLEAR(w->name);
        Py_CLEAR(w->value);
    }
}

ptac_module_kind ptac_module_kind_named(PyObject *name)
{
    int kind = 0;

    while (kind < PTAC_N_MODULES &&
           PyUnicode_CompareWithASCIIString(name, kind_names[kind]) != 0)
        kind++;
    if (kind == PTAC_N_MODULES)
        PyErr_Format(PyExc_ValueError, "no kind of module is called %U", name);
    return (ptac_module_kind)kind;
}

/* A method that is called by its name: Python looks for others in the class alone. */
static bool is_called_by_name(PyObject *type, const watched *w)
{
    return w->owner == type && w->value != Py_None &&
           PyUnicode_ReadChar(w->name, 1) != '_';
}

/* In a Python module, or in a class that is no base: versions say nothing of it. */
static bool lies_elsewhere(PyObject *type, PyObject *owner)
{
    return PyDict_Check(owner) ||
           (PyType_Check(owner) &&
            !PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)owner));
}

/* An entry of a class's list, put before those of the class where it lies elsewhere. */
static bool watch(known_class *class, PyObject *type, PyObject *entry)
{
    watched w;

    if (!PyArg_ParseTuple(entry, "OUO", &w.owner, &w.name, &w.value))
        return false;
    Py_INCREF(w.owner);
    Py_INCREF(w.name);
    Py_INCREF(w.value);
    PyUnicode_InternInPlace(&w.name);
    class->watched[class->n_watched++] = w;
    if (lies_elsewhere(type, w.owner)) {
        class->watched[class->n_watched - 1] = class->watched[class->n_elsewhere];
        class->watched[class->n_elsewhere++] = w;
    } else if (is_called_by_name(type, &w)) {
        if (class->n_methods == MOST_METHODS)
            return PyErr_Format(PyExc_ValueError, "more methods than can be watched");
        class->methods[class->n_methods++] = w.name;
    }
    return true;
}

/* One entry of module_guards_install()'s list. */
static bool remember(PyObject *entry)
{
    PyObject *type, *list;
    PTAC_OWNED PyObject *name = NULL;
    ptac_module_kind kind;
    unsigned at;

    if (!PyArg_ParseTuple(entry, "O!O!", &PyType_Type, &type, &PyList_Type, &list))
        return false;
    name = PyObject_GetAttr(type, ptac_names.__name__);
    kind = name ? ptac_module_kind_named(name) : PTAC_N_MODULES;
    if (kind == PTAC_N_MODULES)
        return false;
    if (PyList_Size(list) > MOST_WATCHED)
        return PyErr_Format(PyExc_ValueError, "more than can be watched");
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        if (!watch(&known[kind], type, PyList_GetItem(list, i))) {
            forget(&known[kind]);
            return false;
        }
    }
    known[kind].type = (PyTypeObject *)Py_NewRef(type); /* known from here on */
    for (at = place_of_type(known[kind].type); places[at]; at = (at + 1) % PLACES)
        ;
    places[at] = (unsigned char)(kind + 1);
    return true;
}

/*
 * module_guards_install([(class, [(owner, name, value)])], [global hook dictionaries]).
 * Takes the place of what was installed before.
 */
PTAC_VARARGS(module_guards_install)
{
    PyObject *classes, *dictionaries;

    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &classes, &PyList_Type,
                          &dictionaries))
        return NULL;
    if (PyList_Size(dictionaries) != N_GLOBAL)
        return PyErr_Format(PyExc_ValueError, "wrong number of hooks");
    for (int i = 0; i < PTAC_N_MODULES; i++)
        forget(&known[i]);
    memset(places, 0, sizeof places);
    for (int i = 0; i < N_GLOBAL; i++)
        ptac_keep(&global_hooks[i], PyList_GetItem(dictionaries, i));
    for (Py_ssize_t i = 0; i < PyList_Size(classes); i++)
        if (!remember(PyList_GetItem(classes, i)))
            return NULL;
    Py_RETURN_NONE;
}
