/*
 * module_guards.c - what calling a module of torch's goes through, remembered.
 */
#include "bind/python/callpath/module_guards.h"

enum {
    MAX_METHODS = 6,
    MAX_FUNCTIONS = 2,
    MAX_TENSORS = 4,
    N_HOOKS = 4,
    N_QUIET = 7,
    N_GLOBAL = 4,
};

/* A function where it is looked up: in a namespace's dictionary. */
typedef struct watched_function {
    PyObject *space, *name, *function;
} watched_function;

typedef struct watched_method {
    PyObject *name, *method;
} watched_method;

/* A class of modules, and what calling one of them goes through. */
typedef struct known_class {
    PyTypeObject *type;
    PyObject *namespaces; /* vars() of the class and of those it inherits from */
    watched_method methods[MAX_METHODS];
    watched_function functions[MAX_FUNCTIONS];
    PyObject *tensors[MAX_TENSORS]; /* names that must not be the class's own */
    int n_methods, n_functions, n_tensors;
} known_class;

static known_class known[PTAC_N_MODULES];
static PyObject *global_hooks[N_GLOBAL]; /* dictionaries that must be empty */

/*
 * Instance attributes: the first four hold hooks, the others change what a call does.
 */
static const char *const quiet_names[N_QUIET] = {
    "_forward_hooks", "_forward_pre_hooks",  "_backward_hooks", "_backward_pre_hooks",
    "forward",        "_compiled_call_impl", "_call_impl"};
static PyObject *quiet[N_QUIET], *s_parameters, *s_buffers;

static bool is_attribute(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    const bool same = value == expected;

    Py_XDECREF(value);
    PyErr_Clear();
    return same;
}

/* A property of the class, or of one before it, comes before a parameter. */
static bool has_class_tensors(const known_class *class)
{
    const Py_ssize_t n_bases = PyTuple_Size(class->namespaces);

    for (Py_ssize_t base = 0; base < n_bases; base++) {
        PyObject *namespace = PyTuple_GetItem(class->namespaces, base);

        for (int i = 0; i < class->n_tensors; i++)
            if (PySequence_Contains(namespace, class->tensors[i]) != 0)
                return true;
    }
    return false;
}

/* Nobody has changed what calling a module of this class goes through. */
static bool is_unchanged(const known_class *class)
{
    for (int i = 0; i < class->n_methods; i++)
        if (!is_attribute((PyObject *)class->type, class->methods[i].name,
                          class->methods[i].method))
            return false;
    for (int i = 0; i < class->n_functions; i++) {
        const watched_function *w = &class->functions[i];

        if (PyDict_GetItemWithError(w->space, w->name) != w->function)
            return false;
    }
    return !has_class_tensors(class);
}

bool ptac_modules_are_unheard(void)
{
    for (int i = 0; i < N_GLOBAL; i++)
        if (!global_hooks[i] || PyDict_Size(global_hooks[i]) != 0)
            return false;
    return true;
}

/* A module that does what its class says and nothing else; its dictionary is given. */
static bool is_bare(const known_class *class, PyObject *attributes)
{
    for (int i = 0; i < class->n_methods; i++)
        if (PyDict_GetItemWithError(attributes, class->methods[i].name))
            return false;
    for (int i = 0; i < N_QUIET; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, quiet[i]);
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
    return own_tensor(attributes, s_parameters, name);
}

PyObject *ptac_module_buffer(PyObject *attributes, PyObject *name)
{
    return own_tensor(attributes, s_buffers, name);
}

static void forget(known_class *class)
{
    Py_CLEAR(class->type);
    Py_CLEAR(class->namespaces);
    for (int i = 0; i < class->n_methods; i++) {
        Py_CLEAR(class->methods[i].name);
        Py_CLEAR(class->methods[i].method);
    }
    for (int i = 0; i < class->n_functions; i++) {
        Py_CLEAR(class->functions[i].space);
        Py_CLEAR(class->functions[i].name);
        Py_CLEAR(class->functions[i].function);
    }
    for (int i = 0; i < class->n_tensors; i++)
        Py_CLEAR(class->tensors[i]);
    class->n_methods = class->n_functions = class->n_tensors = 0;
}

static PyObject *interned(PyObject *name)
{
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    return name;
}

static bool remember_methods(known_class *class, PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyList_Size(names); i++) {
        PyObject *name = PyList_GetItem(names, i), *method;

        method = PyObject_GetAttr((PyObject *)class->type, name);
        if (!method)
            return false;
        class->methods[class->n_methods].name = interned(name);
        class->methods[class->n_methods++].method = method;
    }
    return true;
}

static bool remember_functions(known_class *class, PyObject *functions)
{
    for (Py_ssize_t i = 0; i < PyList_Size(functions); i++) {
        watched_function *w = &class->functions[i];

        if (!PyArg_ParseTuple(PyList_GetItem(functions, i), "O!UO", &PyDict_Type,
                              &w->space, &w->name, &w->function))
            return false;
        Py_INCREF(w->space);
        Py_INCREF(w->name);
        Py_INCREF(w->function);
        class->n_functions++;
    }
    return true;
}

/* A new tuple of the dictionaries that an attribute of the class is looked up in. */
static PyObject *namespaces_of(PyObject *type)
{
    PyObject *mro = PyObject_GetAttrString(type, "__mro__"), *found = NULL;
    const Py_ssize_t n = mro ? PyTuple_Size(mro) : -1;

    if (n >= 0)
        found = PyTuple_New(n);
    for (Py_ssize_t i = 0; found && i < n; i++) {
        PyObject *namespace =
            PyObject_GetAttrString(PyTuple_GetItem(mro, i), "__dict__");

        if (!namespace || PyTuple_SetItem(found, i, namespace) < 0)
            Py_CLEAR(found);
    }
    Py_XDECREF(mro);
    return found;
}

/* One entry of module_guards_install()'s list. */
static bool remember(PyObject *entry)
{
    PyObject *type, *methods, *functions, *tensors;
    known_class *class;
    int kind;

    if (!PyArg_ParseTuple(entry, "iO!O!O!O!", &kind, &PyType_Type, &type, &PyList_Type,
                          &methods, &PyList_Type, &functions, &PyList_Type, &tensors))
        return false;
    if (kind < 0 || kind >= PTAC_N_MODULES || PyList_Size(methods) > MAX_METHODS ||
        PyList_Size(functions) > MAX_FUNCTIONS || PyList_Size(tensors) > MAX_TENSORS) {
        PyErr_SetString(PyExc_ValueError, "no such module, or more than can be kept");
        return false;
    }
    class = &known[kind];
    class->type = (PyTypeObject *)Py_NewRef(type);
    class->namespaces = namespaces_of(type);
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++)
        class->tensors[class->n_tensors++] = interned(PyList_GetItem(tensors, i));
    if (class->namespaces && remember_methods(class, methods) &&
        remember_functions(class, functions))
        return true;
    forget(class);
    return false;
}

static bool intern_names(void)
{
    bool done = true;

    for (int i = 0; i < N_QUIET; i++)
        done = done &&
               (quiet[i] || (quiet[i] = PyUnicode_InternFromString(quiet_names[i])));
    s_parameters =
        s_parameters ? s_parameters : PyUnicode_InternFromString("_parameters");
    s_buffers = s_buffers ? s_buffers : PyUnicode_InternFromString("_buffers");
    return done && s_parameters && s_buffers;
}

/*
 * module_guards_install([(kind, class, [method], [(namespace, name, function)],
 * [tensor])], [global hook dictionaries]), methods and tensors by name. Takes the place
 * of what was installed before.
 */
static PyObject *module_guards_install(PyObject *self, PyObject *args)
{
    PyObject *classes, *hooks;

    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &classes, &PyList_Type, &hooks) ||
        !intern_names())
        return NULL;
    if (PyList_Size(hooks) != N_GLOBAL)
        return PyErr_Format(PyExc_ValueError, "wrong number of hooks");
    for (int i = 0; i < PTAC_N_MODULES; i++)
        forget(&known[i]);
    for (int i = 0; i < N_GLOBAL; i++) {
        Py_XDECREF(global_hooks[i]);
        global_hooks[i] = Py_NewRef(PyList_GetItem(hooks, i));
    }
    for (Py_ssize_t i = 0; i < PyList_Size(classes); i++)
        if (!remember(PyList_GetItem(classes, i)))
            return NULL;
    Py_RETURN_NONE;
}

PyMethodDef ptac_module_guard_methods[] = {
    {"module_guards_install", module_guards_install, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
