/*
 * embedding.h - what the call paths of nn.Embedding and nn.EmbeddingBag ask alike.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_EMBEDDING_H
#define PTAC_BIND_PYTHON_CALLPATH_EMBEDDING_H

#include "bind/python/callpath/module_guards.h"

/* An attribute is this very object. */
bool ptac_attribute_is(PyObject *attributes, PyObject *name, PyObject *value);

/*
 * The table among a module's attributes, owned, where a lean path may take it and the
 * index; *wants: a gradient is asked for. NULL otherwise, with an exception or without.
 */
PyObject *ptac_embedding_table(PyObject *attributes, PyObject *index, bool *wants);

#endif
