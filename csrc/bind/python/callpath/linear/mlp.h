/*
 * mlp.h - lean call paths to mlp: blocks of two layers that are trained on CUDA.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LINEAR_MLP_H
#define PTAC_BIND_PYTHON_CALLPATH_LINEAR_MLP_H

#include "bind/python/callpath/chain/chain.h"
#include "bind/python/module/pybind.h"
#include "ops/linear/mlp.h"

/*
 * act(x w1^T + b1) w2^T + b2 of a tensor on a CUDA device, or None where stock has to
 * compute it; tensors are x, w1, b1, w2, b2 in the order of PTAC_MLP_X and so on, of
 * which biases may be None. Without a gradient there is no such call: a block is two
 * launches then, by linear_act and stock.
 */
PyObject *ptac_try_mlp(PyObject *const tensors[PTAC_MLP_INPUTS], ptac_act activation);

/*
 * The same of the modules that begin at start, Linear, activation, a Dropout
 * that does nothing, or none, and Linear; *n is how many these are. No hook listens to
 * all modules. None where they have to be called, which may be other modules, too.
 */
PyObject *ptac_mlp_chain(const ptac_chain_start *start, Py_ssize_t *n);

#endif
