/*
 * module_guards.h - modules that do what their class says and nothing else.
 *
 * Running two modules as one passes over everything that torch would have called in
 * between. module_guards_install() remembers what that is. A module is known only while
 * all of it is as it was then: its exact class, the class's methods, the functions that
 * these call, and no hooks anywhere.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_MODULE_GUARDS_H
#define PTAC_BIND_PYTHON_CALLPATH_MODULE_GUARDS_H

#include "bind/python/module/names.h"

/* Kinds of modules, by the name of their class. */
#define PTAC_MODULE_KINDS(KIND)                                                        \
    KIND(LINEAR, "Linear")                                                             \
    KIND(CONV2D, "Conv2d")                                                             \
    KIND(BATCH_NORM1D, "BatchNorm1d")                                                  \
    KIND(BATCH_NORM2D, "BatchNorm2d")                                                  \
    KIND(BATCH_NORM3D, "BatchNorm3d")                                                  \
    KIND(MAX_POOL2D, "MaxPool2d")                                                      \
    KIND(RELU, "ReLU")                                                                 \
    KIND(RELU6, "ReLU6")                                                               \
    KIND(HARDSWISH, "Hardswish")                                                       \
    KIND(GELU, "GELU")                                                                 \
    KIND(SILU, "SiLU")                                                                 \
    KIND(TANH, "Tanh")                                                                 \
    KIND(SIGMOID, "Sigmoid")                                                           \
    KIND(DROPOUT, "Dropout")                                                           \
    KIND(SEQUENTIAL, "Sequential")                                                     \
    KIND(CONV1D, "Conv1d")                                                             \
    KIND(LAYER_NORM, "LayerNorm")                                                      \
    KIND(AVG_POOL2D, "AvgPool2d")                                                      \
    KIND(ADAPTIVE_AVG_POOL2D, "AdaptiveAvgPool2d")                                     \
    KIND(LEAKY_RELU, "LeakyReLU")                                                      \
    KIND(ELU, "ELU")                                                                   \
    KIND(HARDSIGMOID, "Hardsigmoid")                                                   \
    KIND(SOFTMAX, "Softmax")                                                           \
    KIND(LOG_SOFTMAX, "LogSoftmax")                                                    \
    KIND(FLATTEN, "Flatten")                                                           \
    KIND(IDENTITY, "Identity")                                                         \
    KIND(EMBEDDING, "Embedding")                                                       \
    KIND(EMBEDDING_BAG, "EmbeddingBag")                                                \
    KIND(INT8_LINEAR, "Int8Linear")                                                    \
    KIND(INT8_CONV2D, "Int8Conv2d")                                                    \
    KIND(FP8_LINEAR, "Fp8Linear")

typedef enum ptac_module_kind {
#define KIND(kind, name) PTAC_MODULE_##kind,
    PTAC_MODULE_KINDS(KIND)
#undef KIND
        PTAC_N_MODULES,
} ptac_module_kind;

/* The kind that a module's class has; PTAC_N_MODULES where it is none of these. */
ptac_module_kind ptac_module_kind_of(PyObject *module);

/* The name of its class. */
const char *ptac_module_kind_name(ptac_module_kind kind);

/* The kind of that name, or PTAC_N_MODULES with ValueError set. */
ptac_module_kind ptac_module_kind_named(PyObject *name);

/*
 * The dictionary of a known module, owned. NULL, without an exception, where the module
 * has to be called.
 */
PyObject *ptac_module_attributes(PyObject *module, ptac_module_kind kind);

/*
 * Whether a module of these attributes, which is its dictionary, has none of those by
 * which calling it would do more than call its class's forward; and whether its
 * forward is its own.
 */
bool ptac_module_is_quiet(PyObject *attributes);
bool ptac_module_has_own_forward(PyObject *attributes);

/* No hook listens to all modules. */
bool ptac_modules_are_unheard(void);

/*
 * What nn.Module.__getattr__ finds under a name in a module of these attributes, where
 * it keeps its things in plain dictionaries: borrowed, or NULL.
 */
PyObject *ptac_module_item(PyObject *attributes, PyObject *name);

/*
 * A parameter or a buffer, or None, owned, by an interned name; NULL, without an
 * exception, where the name means anything else.
 */
PyObject *ptac_module_parameter(PyObject *attributes, PyObject *name);
PyObject *ptac_module_buffer(PyObject *attributes, PyObject *name);

#endif
