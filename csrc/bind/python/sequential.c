/*
 * sequential.c - nn.Sequential.forward, which sees what follows what.
 *
 * A Linear followed by an activation becomes one linear_act, when both are exactly
 * torch's classes and nobody listens in between: no hooks, no forward of their own, no
 * compiled call. Every other module is called as ever.
 */
#include "bind/python/linear.h"

enum {
    MAX_ACTIVATIONS = 8,
    N_QUIET = 5,
    N_GLOBAL = 4,
};

/* What sequential_install() was given. */
static PyTypeObject *linear_type;
static PyObject *linear_forward, *module_type, *module_call;
static PyObject *global_hooks[N_GLOBAL]; /* dictionaries that must be empty */

static struct {
    PyTypeObject *type;
    PyObject *forward;
    ptac_act activation;
} known[MAX_ACTIVATIONS];
static int n_known;

/*
 * Instance attributes: the first four hold hooks, the others change what a call does.
 */
static const char *const quiet_names[N_QUIET + 1] = {
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "forward",        "_compiled_call_impl"};
static PyObject *quiet[N_QUIET + 1];
static PyObject *s_modules, *s_parameters, *s_weight, *s_bias, *s_forward, *s_call,
    *s_approximate;

static bool is_attribute(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    const bool same = value == expected;

    Py_XDECREF(value);
    PyErr_Clear();
    return same;
}

static bool nobody_listens_everywhere(void)
{
    for (int i = 0; i < N_GLOBAL; i++)
        if (PyDict_Size(global_hooks[i]) != 0)
            return false;
    return is_attribute(module_type, s_call, module_call);
}

/* A module that does what its class says and nothing else; its dictionary is given. */
static bool is_bare(PyObject *attributes)
{
    for (int i = 0; i <= N_QUIET; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, quiet[i]);

        if (i < 4 && value && PyObject_IsTrue(value) != 0)
            return false;
        if (i >= 4 && value && value != Py_None)
            return false;
    }
    return !PyErr_Occurred();
}

/* The activation that this module applies; PTAC_ACT_NONE when it is none of ours. */
static ptac_act activation_of(PyObject *module)
{
    int i = 0;

    while (i < n_known && known[i].type != Py_TYPE(module))
        i++;
    if (i == n_known ||
        !is_attribute((PyObject *)known[i].type, s_forward, known[i].forward))
        return PTAC_ACT_NONE;

    PyObject *attributes = PyObject_GenericGetDict(module, NULL);
    ptac_act found = PTAC_ACT_NONE;

    if (attributes && is_bare(attributes)) {
        PyObject *kind = PyDict_GetItemWithError(attributes, s_approximate);

        found = known[i].activation;
        if (kind && PyUnicode_Check(kind) &&
            PyUnicode_CompareWithASCIIString(kind, "tanh") == 0)
            found = PTAC_ACT_GELU_TANH;
    }
    Py_XDECREF(attributes);
    PyErr_Clear();
    return found;
}

/* linear_act of a Linear and what follows; None where they have to be called. */
static PyObject *try_pair(PyObject *module, PyObject *next, PyObject *input)
{
    const ptac_act activation =
        Py_TYPE(module) == linear_type ? activation_of(next) : PTAC_ACT_NONE;
    PyObject *attributes, *parameters, *result = NULL;

    if (activation == PTAC_ACT_NONE ||
        !is_attribute((PyObject *)linear_type, s_forward, linear_forward))
        Py_RETURN_NONE;
    attributes = PyObject_GenericGetDict(module, NULL);
    parameters = attributes ? PyDict_GetItemWithError(attributes, s_parameters) : NULL;
    if (parameters && PyDict_Check(parameters) && is_bare(attributes)) {
        PyObject *weight = PyDict_GetItemWithError(parameters, s_weight);
        PyObject *bias = PyDict_GetItemWithError(parameters, s_bias);
        PyObject *const tensors[3] = {input, weight, bias ? bias : Py_None};

        if (weight)
            result = ptac_try_linear(tensors, activation);
        else if (!PyErr_Occurred())
            result = Py_NewRef(Py_None);
    } else if (!PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    Py_XDECREF(attributes);
    return result;
}

/* Run the modules in turn; the list keeps them, whatever they do to each other. */
static PyObject *run_modules(PyObject *modules, PyObject *input)
{
    const Py_ssize_t n = PyList_Size(modules);
    const bool may_pair = ptac_chooser_gate(PTAC_OP_LINEAR_ACT) == PTAC_TAKE &&
                          nobody_listens_everywhere();
    PyObject *x = Py_NewRef(input);

    for (Py_ssize_t i = 0; i < n && x; i++) {
        PyObject *module = PyList_GetItem(modules, i), *y = NULL;

        if (may_pair && i + 1 < n) {
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

static bool intern_all(void)
{
    const struct {
        PyObject **home;
        const char *text;
    } names[] = {
        {&s_modules, "_modules"},        {&s_parameters, "_parameters"},
        {&s_weight, "weight"},           {&s_bias, "bias"},
        {&s_forward, "forward"},         {&s_call, "__call__"},
        {&s_approximate, "approximate"},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].home &&
            !(*names[i].home = PyUnicode_InternFromString(names[i].text)))
            return false;
    for (int i = 0; i <= N_QUIET; i++)
        if (!quiet[i] && !(quiet[i] = PyUnicode_InternFromString(quiet_names[i])))
            return false;
    return true;
}

/*
 * sequential_install(Module, Linear, [(activation class, code)], [global hook dicts]):
 * remembers the classes' forward and Module's __call__ as they are now. Idempotent;
 * what is remembered stays for the life of the process.
 */
static PyObject *sequential_install(PyObject *self, PyObject *args)
{
    PyObject *module, *linear, *activations, *hooks;

    (void)self;
    if (!PyArg_ParseTuple(args, "OOO!O!", &module, &linear, &PyList_Type, &activations,
                          &PyList_Type, &hooks) ||
        !intern_all())
        return NULL;
    if (linear_type)
        Py_RETURN_NONE;
    if (PyList_Size(hooks) != N_GLOBAL || PyList_Size(activations) > MAX_ACTIVATIONS)
        return PyErr_Format(PyExc_ValueError, "wrong number of hooks or activations");
    for (int i = 0; i < N_GLOBAL; i++)
        global_hooks[i] = Py_NewRef(PyList_GetItem(hooks, i));
    for (Py_ssize_t i = 0; i < PyList_Size(activations); i++) {
        PyObject *type;
        int code;

        if (!PyArg_ParseTuple(PyList_GetItem(activations, i), "Oi", &type, &code))
            return NULL;
        known[n_known].type = (PyTypeObject *)Py_NewRef(type);
        known[n_known].forward = PyObject_GetAttr(type, s_forward);
        known[n_known].activation = (ptac_act)code;
        n_known++;
    }
    module_type = Py_NewRef(module);
    module_call = PyObject_GetAttr(module, s_call);
    linear_forward = PyObject_GetAttr(linear, s_forward);
    linear_type = (PyTypeObject *)Py_NewRef(linear);
    Py_RETURN_NONE;
}

PyMethodDef ptac_sequential_methods[] = {
    PTAC_FASTCALL(sequential, NULL),
    {"sequential_install", sequential_install, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
