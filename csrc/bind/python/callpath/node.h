/*
 * node.h - nodes of ours in autograd's graph, as lean call paths make them.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_NODE_H
#define PTAC_BIND_PYTHON_CALLPATH_NODE_H

#include "bind/python/module/pybind.h"

/*
 * What a node computes: the first output of apply(*args), or None for stock, which has
 * been counted as a refusal of op. NULL for the tuple args, or for apply, means that an
 * exception is set, and gives NULL.
 */
PyObject *ptac_node_apply(ptac_op op, PyObject *apply, PyObject *args);

#endif
