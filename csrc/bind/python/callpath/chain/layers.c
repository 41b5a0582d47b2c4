/*
 * layers.c - which layers begin a chain, and running it.
 */
#include "bind/python/callpath/chain/chain.h"
#include "bind/python/callpath/lean.h"
#include "bind/python/callpath/linear/mlp.h"

enum {
    ACTIVATIONS = PTAC_KIND_BIT(RELU) | PTAC_KIND_BIT(GELU) | PTAC_KIND_BIT(SILU) |
                  PTAC_KIND_BIT(TANH) | PTAC_KIND_BIT(SIGMOID),
};

/* linear_act of a Linear and the activation behind it. */
static PyObject *linear_chain(ptac_chain *chain, PyObject *x)
{
    PTAC_OWNED PyObject *weight =
        ptac_module_parameter(chain->attributes, ptac_names.weight);
    PTAC_OWNED PyObject *bias =
        ptac_module_parameter(chain->attributes, ptac_names.bias);
    PyObject *const tensors[3] = {x, weight, bias};

    return weight && bias ? ptac_try_linear(tensors, chain->activation, false)
                          : Py_NewRef(Py_None);
}

/*
 * What may follow a layer, and what runs them as one; and what goes first, or alone,
 * where it has a gate of its own.
 */
typedef struct layer_kind {
    PyObject *(*run_first)(const ptac_chain_start *start, Py_ssize_t *n);
    ptac_op op;
    uint64_t followers;
    bool (*may_be_ours)(PyObject *module, PyObject *x); /* NULL: its gate is open */
    PyObject *(*run)(ptac_chain *chain, PyObject *x);
} layer_kind;

static const layer_kind layers[PTAC_N_MODULES + 1] = {
    [PTAC_MODULE_LINEAR] = {ptac_mlp_chain, PTAC_OP_LINEAR_ACT, ACTIVATIONS, NULL,
                            linear_chain},
    [PTAC_MODULE_CONV2D] = {NULL, PTAC_OP_CONV2D,
                            PTAC_KIND_BIT(BATCH_NORM2D) | PTAC_KIND_BIT(RELU) |
                                PTAC_KIND_BIT(RELU6) | PTAC_KIND_BIT(SILU) |
                                PTAC_KIND_BIT(HARDSWISH) | PTAC_KIND_BIT(MAX_POOL2D),
                            ptac_conv_may_be_ours, ptac_conv_chain},
    [PTAC_MODULE_BATCH_NORM1D] = {.run_first = ptac_norm_chain},
    [PTAC_MODULE_BATCH_NORM2D] = {.run_first = ptac_norm_chain},
    [PTAC_MODULE_BATCH_NORM3D] = {.run_first = ptac_norm_chain},
    [PTAC_MODULE_RELU] = {.run_first = ptac_relu_pool_chain},
    [PTAC_MODULE_INT8_LINEAR] = {NULL, PTAC_OP_INT8_LINEAR, PTAC_KIND_BIT(RELU), NULL,
                                 ptac_int8_linear_chain},
    [PTAC_MODULE_INT8_CONV2D] = {NULL, PTAC_OP_INT8_CONV2D,
                                 PTAC_KIND_BIT(BATCH_NORM2D) | PTAC_KIND_BIT(RELU),
                                 NULL, ptac_int8_conv2d_chain},
    [PTAC_MODULE_FP8_LINEAR] = {NULL, PTAC_OP_FP8_LINEAR, PTAC_KIND_BIT(RELU), NULL,
                                ptac_fp8_linear_chain},
};

bool ptac_chain_may_begin(PyObject *module)
{
    const layer_kind *layer = &layers[ptac_module_kind_of(module)];

    return layer->run || layer->run_first;
}

static ptac_module_kind kind_at(PyObject *modules, Py_ssize_t i)
{
    return i < PyList_Size(modules) ? ptac_module_kind_of(PyList_GetItem(modules, i))
                                    : PTAC_N_MODULES;
}

PyObject *ptac_chain_run(const ptac_chain_start *start, Py_ssize_t *n)
{
    PyObject *module = PyList_GetItem(start->modules, start->at), *x = start->x,
             *result;
    const layer_kind *layer = &layers[ptac_module_kind_of(module)];
    ptac_chain chain;

    result = layer->run_first ? layer->run_first(start, n) : Py_NewRef(Py_None);
    if (result != Py_None || !layer->run)
        return result;
    Py_DECREF(result);
    if (!(layer->followers >> kind_at(start->modules, start->at + 1) & 1) ||
        !(layer->may_be_ours ? layer->may_be_ours(module, x)
                             : ptac_chooser_gate(layer->op) == PTAC_TAKE))
        Py_RETURN_NONE;
    result = ptac_chain_read(start->modules, start->at, layer->followers, &chain)
                 ? layer->run(&chain, x)
                 : Py_NewRef(Py_None);
    *n = chain.n;
    ptac_chain_drop(&chain);
    return result;
}
