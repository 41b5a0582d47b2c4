/*
 * mlp_chain.c - a Linear, its activation and the Linear behind it, run as one mlp.
 */
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/linear/mlp.h"

/* What has been read of the modules; tensors but x are owned. */
typedef struct block {
    PyObject *tensors[PTAC_MLP_INPUTS];
    ptac_act activation;
    Py_ssize_t n; /* modules */
} block;

static void drop_block(block *b)
{
    for (int i = PTAC_MLP_W1; i < PTAC_MLP_INPUTS; i++)
        Py_XDECREF(b->tensors[i]);
}

static PyObject *at(PyObject *modules, Py_ssize_t i)
{
    return i < PyList_Size(modules) ? PyList_GetItem(modules, i) : Py_None;
}

static bool read_linear(PyObject *module, PyObject **weight, PyObject **bias)
{
    PTAC_OWNED PyObject *attributes =
        ptac_module_attributes(module, PTAC_MODULE_LINEAR);

    if (!attributes)
        return false;
    *weight = ptac_module_parameter(attributes, ptac_names.weight);
    *bias = ptac_module_parameter(attributes, ptac_names.bias);
    return *weight && *bias;
}

static ptac_act read_activation(PyObject *module)
{
    const ptac_module_kind kind = ptac_module_kind_of(module);
    PTAC_OWNED PyObject *attributes = ptac_module_attributes(module, kind);

    return attributes ? ptac_module_activation(kind, attributes) : PTAC_ACT_NONE;
}

static bool does_nothing(PyObject *module)
{
    PTAC_OWNED PyObject *attributes =
        ptac_module_attributes(module, PTAC_MODULE_DROPOUT);

    return attributes && ptac_dropout_is_idle(attributes);
}

/* The classes of the modules say that they may be a block; *second is where it ends. */
static bool looks_like_block(PyObject *modules, Py_ssize_t first, Py_ssize_t *second)
{
    const uint64_t activations = PTAC_KIND_BIT(RELU) | PTAC_KIND_BIT(GELU) |
                                 PTAC_KIND_BIT(SILU) | PTAC_KIND_BIT(TANH) |
                                 PTAC_KIND_BIT(SIGMOID);

    *second = first + 2;
    if (ptac_module_kind_of(at(modules, first)) != PTAC_MODULE_LINEAR ||
        !(activations >> ptac_module_kind_of(at(modules, first + 1)) & 1))
        return false;
    if (ptac_module_kind_of(at(modules, *second)) == PTAC_MODULE_DROPOUT)
        ++*second;
    return ptac_module_kind_of(at(modules, *second)) == PTAC_MODULE_LINEAR;
}

static bool read_block(PyObject *modules, Py_ssize_t first, Py_ssize_t second, block *b)
{
    PyObject **t = b->tensors;

    b->n = second - first + 1;
    if (second - first == 3 && !does_nothing(at(modules, second - 1)))
        return false;
    b->activation = read_activation(at(modules, first + 1));
    return b->activation != PTAC_ACT_NONE &&
           read_linear(at(modules, first), &t[PTAC_MLP_W1], &t[PTAC_MLP_B1]) &&
           read_linear(at(modules, second), &t[PTAC_MLP_W2], &t[PTAC_MLP_B2]);
}

PyObject *ptac_mlp_chain(const ptac_chain_start *start, Py_ssize_t *n)
{
    __attribute__((cleanup(drop_block))) block b = {.tensors = {start->x}};
    Py_ssize_t second;
    bool is_block;

    if (ptac_chooser_gate(PTAC_OP_MLP) == PTAC_OFF ||
        !looks_like_block(start->modules, start->at, &second) ||
        !ptac_is_plain_on_cuda(start->x))
        Py_RETURN_NONE;
    is_block = read_block(start->modules, start->at, second, &b);
    PyErr_Clear();
    if (!is_block)
        Py_RETURN_NONE;
    *n = b.n;
    return ptac_try_mlp(b.tensors, b.activation);
}

/*
 * mlp_of_modules([Linear, activation, Dropout, Linear], x) -> what they make of x in
 * turn, or None where they have to be called.
 */
PTAC_ARGS(mlp_of_modules, 2)
{
    const ptac_chain_start start = {.modules = args[0], .x = args[1]};
    Py_ssize_t unused;

    if (!PyList_Check(args[0]) || PyList_Size(args[0]) != 4)
        return PyErr_Format(PyExc_TypeError, "modules are a list of four");
    if (!ptac_modules_are_unheard() ||
        ptac_module_kind_of(at(args[0], 2)) != PTAC_MODULE_DROPOUT)
        Py_RETURN_NONE;
    return ptac_mlp_chain(&start, &unused);
}
