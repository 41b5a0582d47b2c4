/*
 * autocast.h - what lean call paths to products on CUDA give these under autocast.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LINEAR_AUTOCAST_H
#define PTAC_BIND_PYTHON_CALLPATH_LINEAR_AUTOCAST_H

#include "bind/python/module/pybind.h"
#include "bind/torch/autocast.h"

/* Tensors as autocast gives them to a product, or None; owned. */
typedef struct ptac_casts {
    PyObject *of[AT_MAX_TENSORS];
} ptac_casts;

static inline void ptac_drop_casts(ptac_casts *casts)
{
    for (int i = 0; i < AT_MAX_TENSORS; i++)
        Py_XDECREF(casts->of[i]);
}

#define PTAC_CASTS __attribute__((cleanup(ptac_drop_casts))) ptac_casts

/*
 * Fill in casts, which is zero, for n plain tensors or None, that a node of ours will
 * be given or not. False where stock has to do the call, counted as a refusal of op, or
 * with an exception set.
 */
bool ptac_cast_all(ptac_op op, PyObject *const *tensors, int n, bool for_node,
                   ptac_casts *casts);

#endif
