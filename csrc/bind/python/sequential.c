/*
 * sequential.c - nn.Sequential.forward, which sees what follows what.
 *
 * A Linear followed by an activation becomes one linear_act, when both are exactly
 * torch's classes and nobody could notice: no hooks, no forward of their own, no
 * compiled call, and all that torch would call in between is what it was when
 * sequential_install() was told. Every other module is called as ever.
 */
#include "bind/python/linear.h"

enum {
    MAX_ACTIVATIONS = 8,
    MAX_FUNCTIONS = 2,
    N_HOOKS = 4,
    N_QUIET = 7,
    N_GLOBAL = 4,
    N_METHODS = 4,
};

/* A function where it is looked up: in a namespace's dictionary. */
typedef struct watched {
    PyObject *space, *name, *function;
} watched;

/* A class of modules, and what calling one of them goes through. */
typedef struct known_class {
    PyTypeObject *type;
    PyObject *methods[N_METHODS];
    watched functions[MAX_FUNCTIONS];
    int n_functions;
    ptac_act activation;
} known_class;

/* What sequential_install() was given. */
static known_class linear_class, known[MAX_ACTIVATIONS];
static int n_known;
static PyObject *linear_namespace;       /* vars(Linear) */
static PyObject *global_hooks[N_GLOBAL]; /* dictionaries that must be empty */

static const char *const method_names[N_METHODS] = {"forward", "__call__", "_call_impl",
                                                    "__getattr__"};
static PyObject *methods[N_METHODS];

/*
 * Instance attributes: the first four hold hooks, the others change what a call does.
 */
static const char *const quiet_names[N_QUIET] = {
    "_forward_hooks", "_forward_pre_hooks",  "_backward_hooks", "_backward_pre_hooks",
    "forward",        "_compiled_call_impl", "_call_impl"};
static PyObject *quiet[N_QUIET];
static PyObject *s_modules, *s_parameters, *s_weight, *s_bias, *s_approximate;

static bool is_attribute(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    const bool same = value == expected;

    Py_XDECREF(value);
    PyErr_Clear();
    return same;
}

/* Nobody has changed what calling a module of this class goes through. */
static bool is_unchanged(const known_class *class)
{
    for (int i = 0; i < N_METHODS; i++)
        if (!is_attribute((PyObject *)class->type, methods[i], class->methods[i]))
            return false;
    for (int i = 0; i < class->n_functions; i++) {
        const watched *w = &class->functions[i];

        if (PyDict_GetItemWithError(w->space, w->name) != w->function)
            return false;
    }
    return true;
}

static bool nobody_listens_everywhere(void)
{
    for (int i = 0; i < N_GLOBAL; i++)
        if (!global_hooks[i] || PyDict_Size(global_hooks[i]) != 0)
            return false;
    return true;
}

/* The class has no weight or bias of its own, such as a property. */
static bool parameters_are_instances(void)
{
    return PySequence_Contains(linear_namespace, s_weight) == 0 &&
           PySequence_Contains(linear_namespace, s_bias) == 0;
}

/* Asked before each module: the one before may have changed any of this. */
static bool may_pair(PyObject *module)
{
    return Py_TYPE(module) == linear_class.type && n_known > 0 &&
           ptac_chooser_gate(PTAC_OP_LINEAR_ACT) == PTAC_TAKE &&
           nobody_listens_everywhere() && is_unchanged(&linear_class) &&
           parameters_are_instances();
}

/* A module that does what its class says and nothing else; its dictionary is given. */
static bool is_bare(PyObject *attributes)
{
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

/* GELU's kind; PTAC_ACT_NONE where torch would raise. */
static ptac_act gelu_of(PyObject *attributes)
{
    PyObject *kind = PyDict_GetItemWithError(attributes, s_approximate);

    if (!kind || !PyUnicode_Check(kind))
        return PTAC_ACT_NONE;
    if (PyUnicode_CompareWithASCIIString(kind, "none") == 0)
        return PTAC_ACT_GELU;
    return PyUnicode_CompareWithASCIIString(kind, "tanh") == 0 ? PTAC_ACT_GELU_TANH
                                                               : PTAC_ACT_NONE;
}

/* The activation that this module applies; PTAC_ACT_NONE when it is none of ours. */
static ptac_act activation_of(PyObject *module)
{
    int i = 0;

    while (i < n_known && known[i].type != Py_TYPE(module))
        i++;
    if (i == n_known || !is_unchanged(&known[i]))
        return PTAC_ACT_NONE;

    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    ptac_act found = PTAC_ACT_NONE;

    if (attributes && is_bare(attributes)) {
        found = known[i].activation;
        if (found == PTAC_ACT_GELU)
            found = gelu_of(attributes);
    }
    Py_XDECREF(attributes);
    PyErr_Clear();
    return found;
}

/*
 * What a Linear of these attributes calls by this name, owned, where it is a parameter
 * or None; NULL where it is anything else, such as a buffer.
 */
static PyObject *own_parameter(PyObject *attributes, PyObject *name)
{
    PyObject *parameters = PyDict_GetItemWithError(attributes, s_parameters);
    PyObject *found;

    if (!parameters || !PyDict_CheckExact(parameters) ||
        PyDict_GetItemWithError(attributes, name))
        return NULL;
    found = PyDict_GetItemWithError(parameters, name);
    Py_XINCREF(found);
    return found;
}

/* linear_act of a Linear and what follows; None where they have to be called. */
static PyObject *try_pair(PyObject *module, PyObject *next, PyObject *input)
{
    const ptac_act activation = activation_of(next);
    PyObject *attributes, *weight = NULL, *bias = NULL, *result = NULL;

    if (activation == PTAC_ACT_NONE)
        Py_RETURN_NONE;
    attributes = PyObject_GenericGetDict(module, NULL);
    if (attributes && is_bare(attributes)) {
        weight = own_parameter(attributes, s_weight);
        bias = weight ? own_parameter(attributes, s_bias) : NULL;
    }
    if (bias) {
        PyObject *const tensors[3] = {input, weight, bias};

        result = ptac_try_linear(tensors, activation, false);
    } else if (!PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    Py_XDECREF(bias);
    Py_XDECREF(weight);
    Py_XDECREF(attributes);
    return result;
}

/* Run the modules in turn; the list keeps them, whatever they do to each other. */
static PyObject *run_modules(PyObject *modules, PyObject *input)
{
    const Py_ssize_t n = PyList_Size(modules);
    PyObject *x = Py_NewRef(input);

    for (Py_ssize_t i = 0; i < n && x; i++) {
        PyObject *module = PyList_GetItem(modules, i), *y = NULL;

        if (i + 1 < n && may_pair(module)) {
            y = try_pair(module, PyList_GetItem(modules, i + 1), x);
            if (y == Py_None)
                Py_CLEAR(y);
            else if (y)
                i++;
        }
        if (!y && !PyErr_Occurred())
            y = PyObject_CallFunctionObjArgs(module, x, NULL);
        Py_DECREF(x);
        x = y;
    }
    return x;
}

/* sequential(module, input) -> what the modules of this Sequential make of input. */
static PyObject *sequential(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *children, *modules, *result;

    (void)self;
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "module, input");
    children = PyObject_GetAttr(args[0], s_modules);
    modules = children && PyDict_Check(children) ? PyDict_Values(children) : NULL;
    Py_XDECREF(children);
    if (!modules) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a Sequential without modules");
        return NULL;
    }
    result = run_modules(modules, args[1]);
    Py_DECREF(modules);
    return result;
}

static bool intern(PyObject **home, const char *text)
{
    return *home || (*home = PyUnicode_InternFromString(text));
}

static bool intern_all(void)
{
    bool done = intern(&s_modules, "_modules") &&
                intern(&s_parameters, "_parameters") && intern(&s_weight, "weight") &&
                intern(&s_bias, "bias") && intern(&s_approximate, "approximate");

    for (int i = 0; i < N_METHODS; i++)
        done = done && intern(&methods[i], method_names[i]);
    for (int i = 0; i < N_QUIET; i++)
        done = done && intern(&quiet[i], quiet_names[i]);
    return done;
}

static void forget(known_class *class)
{
    Py_CLEAR(class->type);
    for (int i = 0; i < N_METHODS; i++)
        Py_CLEAR(class->methods[i]);
    for (int i = 0; i < class->n_functions; i++) {
        Py_CLEAR(class->functions[i].space);
        Py_CLEAR(class->functions[i].name);
        Py_CLEAR(class->functions[i].function);
    }
    class->n_functions = 0;
}

/* The class, its methods as they are now, and the functions (space, name, function). */
static bool remember(known_class *class, PyObject *type, PyObject *functions)
{
    const Py_ssize_t n = PyList_Size(functions);

    class->type = (PyTypeObject *)Py_NewRef(type);
    for (int i = 0; i < N_METHODS; i++)
        if (!(class->methods[i] = PyObject_GetAttr(type, methods[i])))
            return false;
    if (n > MAX_FUNCTIONS) {
        PyErr_SetString(PyExc_ValueError, "too many functions");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        watched *w = &class->functions[i];

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

static bool remember_activation(PyObject *entry)
{
    PyObject *type, *functions;
    int code;

    if (!PyArg_ParseTuple(entry, "OiO!", &type, &code, &PyList_Type, &functions))
        return false;
    known[n_known].activation = (ptac_act)code;
    if (remember(&known[n_known], type, functions)) {
        n_known++;
        return true;
    }
    forget(&known[n_known]);
    return false;
}

/*
 * sequential_install(Linear, [function], [(activation class, code, [function])],
 * [global hook dictionaries]), where a function is (namespace, name, what is there).
 * Takes the place of what was installed before.
 */
static PyObject *sequential_install(PyObject *self, PyObject *args)
{
    PyObject *linear, *functions, *activations, *hooks;

    (void)self;
    if (!PyArg_ParseTuple(args, "OO!O!O!", &linear, &PyList_Type, &functions,
                          &PyList_Type, &activations, &PyList_Type, &hooks) ||
        !intern_all())
        return NULL;
    if (PyList_Size(hooks) != N_GLOBAL || PyList_Size(activations) > MAX_ACTIVATIONS)
        return PyErr_Format(PyExc_ValueError, "wrong number of hooks or activations");
    while (n_known > 0)
        forget(&known[--n_known]);
    forget(&linear_class);
    for (int i = 0; i < N_GLOBAL; i++) {
        Py_XDECREF(global_hooks[i]);
        global_hooks[i] = Py_NewRef(PyList_GetItem(hooks, i));
    }
    Py_XDECREF(linear_namespace);
    linear_namespace = PyObject_GetAttrString(linear, "__dict__");
    if (!linear_namespace || !remember(&linear_class, linear, functions))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(activations); i++)
        if (!remember_activation(PyList_GetItem(activations, i)))
            return NULL;
    Py_RETURN_NONE;
}

PyMethodDef ptac_sequential_methods[] = {
    PTAC_FASTCALL(sequential, NULL),
    {"sequential_install", sequential_install, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
