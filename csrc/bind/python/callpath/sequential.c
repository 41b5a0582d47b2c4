/*
 * sequential.c - nn.Sequential.forward, which sees what follows what.
 *
 * A Linear followed by an activation becomes one linear_act, and a Conv2d with what
 * follows one conv2d (conv_chain.h), when all are known modules and nobody could
 * notice. Every other module is called as ever.
 */
#include "bind/python/callpath/conv_chain.h"
#include "bind/python/callpath/linear.h"

static PyObject *s_modules, *s_weight, *s_bias, *s_approximate;

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
    static const ptac_act activations[PTAC_N_MODULES + 1] = {
        [PTAC_MODULE_RELU] = PTAC_ACT_RELU,       [PTAC_MODULE_GELU] = PTAC_ACT_GELU,
        [PTAC_MODULE_SILU] = PTAC_ACT_SILU,       [PTAC_MODULE_TANH] = PTAC_ACT_TANH,
        [PTAC_MODULE_SIGMOID] = PTAC_ACT_SIGMOID,
    };
    const ptac_module_kind kind = ptac_module_kind_of(module);
    ptac_act found = activations[kind];
    PyObject *attributes;

    if (found == PTAC_ACT_NONE)
        return PTAC_ACT_NONE;
    attributes = ptac_module_attributes(module, kind);
    if (!attributes)
        return PTAC_ACT_NONE;
    if (found == PTAC_ACT_GELU)
        found = gelu_of(attributes);
    Py_DECREF(attributes);
    PyErr_Clear();
    return found;
}

/* linear_act of a Linear and what follows; None where they have to be called. */
static PyObject *try_pair(PyObject *module, PyObject *next, PyObject *input)
{
    const ptac_act activation = activation_of(next);
    PyObject *attributes = NULL, *weight = NULL, *bias = NULL, *result = NULL;

    if (activation != PTAC_ACT_NONE)
        attributes = ptac_module_attributes(module, PTAC_MODULE_LINEAR);
    if (attributes)
        weight = ptac_module_parameter(attributes, s_weight);
    if (weight)
        bias = ptac_module_parameter(attributes, s_bias);
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

/*
 * What the module at a place, and perhaps some behind it, make of x in one; *n is how
 * many. None where the module has to be called. Asked before each module: the one
 * before may have changed any of this.
 */
static PyObject *try_at(PyObject *modules, Py_ssize_t at, PyObject *x, Py_ssize_t *n)
{
    PyObject *module = PyList_GetItem(modules, at);
    const ptac_module_kind kind = ptac_module_kind_of(module);

    if (at + 1 == PyList_Size(modules) || !ptac_modules_are_unheard())
        Py_RETURN_NONE;
    if (kind == PTAC_MODULE_LINEAR &&
        ptac_chooser_gate(PTAC_OP_LINEAR_ACT) == PTAC_TAKE) {
        *n = 2;
        return try_pair(module, PyList_GetItem(modules, at + 1), x);
    }
    if (kind == PTAC_MODULE_CONV2D && ptac_chooser_gate(PTAC_OP_CONV2D) == PTAC_TAKE)
        return ptac_try_conv_chain(modules, at, x, n);
    Py_RETURN_NONE;
}

/* Run the modules in turn; the list keeps them, whatever they do to each other. */
static PyObject *run_modules(PyObject *modules, PyObject *input)
{
    const Py_ssize_t n = PyList_Size(modules);
    PyObject *x = Py_NewRef(input);

    for (Py_ssize_t i = 0, n_done = 1; i < n && x; i += n_done) {
        PyObject *y = try_at(modules, i, x, &n_done);

        if (y == Py_None) {
            Py_DECREF(y);
            y = PyObject_CallFunctionObjArgs(PyList_GetItem(modules, i), x, NULL);
            n_done = 1;
        }
        Py_DECREF(x);
        x = y;
    }
    return x;
}

static bool intern(PyObject **home, const char *text)
{
    return *home || (*home = PyUnicode_InternFromString(text));
}

static bool intern_names(void)
{
    return intern(&s_modules, "_modules") && intern(&s_weight, "weight") &&
           intern(&s_bias, "bias") && intern(&s_approximate, "approximate");
}

/* sequential(module, input) -> what the modules of this Sequential make of input. */
static PyObject *sequential(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *children, *modules, *result;

    (void)self;
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "module, input");
    if (!intern_names())
        return NULL;
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

PyMethodDef ptac_sequential_methods[] = {
    PTAC_FASTCALL(sequential, NULL),
    {NULL, NULL, 0, NULL},
};
