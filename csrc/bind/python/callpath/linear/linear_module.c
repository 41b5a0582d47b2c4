/*
 * linear_module.c - nn.Linear.forward: linear_act where a row takes the call, else
 * torch's own product.
 *
 * Small layers are called very often, and torch needs longer to find their weight and
 * bias than a refusal takes: nn.Module.__getattr__ is Python. As long as nobody has
 * changed what finds them, we read the same dictionary ourselves.
 */
#include "bind/python/callpath/lean.h"
#include "bind/python/callpath/module_guards.h"

enum {
    N_CLASSES = 2, /* nn.Linear, nn.Module */
};

static PyObject *linear_type;
static PyObject *spaces[N_CLASSES];        /* the attributes of the classes */
static Py_ssize_t n_attributes[N_CLASSES]; /* how many there were */
static PyObject *getattr_found;            /* nn.Module.__getattr__, if torch's own */

PTAC_LENT(stock_linear) /* torch._C._nn.linear */

/* The classes have no more attributes than they had, and the same __getattr__. */
static bool classes_are_as_found(void)
{
    PyObject *getattr;

    for (int i = 0; i < N_CLASSES; i++)
        if (PyObject_Size(spaces[i]) != n_attributes[i])
            return false;
    getattr = PyObject_GetItem(spaces[N_CLASSES - 1], ptac_names.__getattr__);
    Py_XDECREF(getattr);
    PyErr_Clear();
    return getattr == getattr_found;
}

/* A parameter of the module as module.name gives it. */
static PyObject *parameter(PyObject *module, PyObject *attributes, PyObject *name)
{
    PyObject *found = attributes ? ptac_module_parameter(attributes, name) : NULL;

    return found || PyErr_Occurred() ? found : PyObject_GetAttr(module, name);
}

/* linear_module(module, x) -> what nn.Linear.forward gives. */
PTAC_ARGS(linear_module, 2)
{
    PTAC_OWNED PyObject *attributes = NULL, *weight = NULL, *bias = NULL;
    PyObject *result = NULL;

    if ((PyObject *)Py_TYPE(args[0]) == linear_type && classes_are_as_found()) {
        attributes = PyObject_GenericGetDict(args[0], NULL);
        PyErr_Clear();
    }
    weight = parameter(args[0], attributes, ptac_names.weight);
    if (weight)
        bias = parameter(args[0], attributes, ptac_names.bias);
    if (bias) {
        PyObject *const tensors[3] = {args[1], weight, bias};

        result = ptac_try_linear(tensors, PTAC_ACT_NONE, true);
    }
    if (result == Py_None) {
        Py_DECREF(result);
        result =
            PyObject_CallFunctionObjArgs(stock_linear, args[1], weight, bias, NULL);
    }
    return result;
}

/*
 * linear_module_install(nn.Linear, nn.Module, torch's own nn.Module.__getattr__ or None
 * where it has been replaced)
 */
PTAC_VARARGS(linear_module_install)
{
    PyObject *classes[N_CLASSES], *getattr;

    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &classes[0], &PyType_Type,
                          &classes[1], &getattr))
        return NULL;
    for (int i = 0; i < N_CLASSES; i++) {
        PyObject *space = PyObject_GetAttr(classes[i], ptac_names.__dict__);

        if (!space)
            return NULL;
        ptac_keep(&spaces[i], space);
        n_attributes[i] = PyObject_Size(space);
        Py_DECREF(space);
    }
    ptac_keep(&getattr_found, getattr);
    ptac_keep(&linear_type, classes[0]);
    Py_RETURN_NONE;
}
