/*
 * lean.h - what lean call paths have in common.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LEAN_H
#define PTAC_BIND_PYTHON_CALLPATH_LEAN_H

#include "bind/python/module/pybind.h"
#include "bind/torch/rows/linear_act.h"
#include "ops/pool/window2d.h"

/*
 * act(linear(x, w, bias)), or None where stock has to compute it. tensors are x, w, and
 * bias or None; anything else in their place leads to None as well. Refusals are not
 * counted where the caller goes on to a path that will ask again.
 */
PyObject *ptac_try_linear(PyObject *const tensors[3], ptac_act activation,
                          bool counts_refusals);

/*
 * The same of a call whose x is on a CUDA device and whose switch is on, and what
 * LinearAct's forward and backward are there: y, or (y, z), or None; false for stock.
 */
PyObject *ptac_try_linear_on_cuda(PyObject *const tensors[3], ptac_act activation,
                                  bool counts_refusals);
PyObject *ptac_linear_forward_on_cuda(PyObject *const tensors[3], ptac_act activation,
                                      const ptac_kernel *row, bool is_training);
bool ptac_linear_backward_on_cuda(const char *row, ptac_act activation,
                                  ptac_linear_gradients *gradients);

/*
 * Whether a gradient will be asked of x, w or bias; -1 with an exception set. Asks w
 * first: parameters usually want one.
 */
int ptac_linear_wants_gradient(PyObject *const tensors[3]);

/* By way of LinearAct, for a call that the row takes. */
PyObject *ptac_linear_node(PyObject *const tensors[3], ptac_act activation,
                           const ptac_kernel *row, bool is_training);

/*
 * What a node of ours in autograd's graph computes: the first output of apply(*args),
 * or None for stock, which has been counted as a refusal of op. NULL for the tuple
 * args, or for apply, means that an exception is set, and gives NULL.
 */
PyObject *ptac_node_apply(ptac_op op, PyObject *apply, PyObject *args);

/*
 * The same in two steps: whether hooks of the program see what autograd saves, -1 with
 * an exception set; and the node, where they do not.
 */
int ptac_saving_is_hooked(void);
PyObject *ptac_node_make(PyObject *apply, PyObject *args);

/*
 * Max pooling of ReLU(x), or None where the two have to be called; x is a plain tensor
 * on a CUDA device.
 */
PyObject *ptac_try_relu_max_pool2d(PyObject *x, const ptac_window2d *window);

#endif
