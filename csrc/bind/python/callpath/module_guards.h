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

/*
 * The dictionary of a known module, owned. NULL, without an exception, where the module
 * has to be called.
 */
PyObject *ptac_module_attributes(PyObject *module, ptac_module_kind kind);

/* No hook listens to all modules. */
bool ptac_modules_are_unheard(void);

/*
 * A parameter or a buffer, or None, owned, by an interned name; NULL, without an
 * exception, where the name means anything else.
 */
PyObject *ptac_module_parameter(PyObject *attributes, PyObject *name);
PyObject *ptac_module_buffer(PyObject *attributes, PyObject *name);

#endif
