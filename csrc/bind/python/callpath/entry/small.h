/*
 * small.h - what an operator of Python's does to a tensor, as small_pointwise.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_ENTRY_SMALL_H
#define PTAC_BIND_PYTHON_CALLPATH_ENTRY_SMALL_H

#include "bind/python/module/pybind.h"
#include "ops/pointwise/small.h"

/* Fill in a call of one input, of which the rest is not zeroed: it is large. */
static inline void ptac_small_begin(ptac_call *call, const ptac_small *params)
{
    call->op = PTAC_OP_SMALL_POINTWISE;
    call->on = PTAC_ON_CPU;
    call->device = 0;
    call->params = params;
    call->n_inputs = 1;
    call->n_outputs = 0;
}

/* torch.relu and torch.relu_ are entered, and lead to torch's own kernels. */
bool ptac_relu_is_torchs(void);

/*
 * x + number and so on, by the planner's code of it (fusion/sites/bytecode.py). False
 * where the class has another operator, or the number is none that torch takes.
 */
bool ptac_small_of_operator(int code, PyTypeObject *type, PyObject *number,
                            ptac_small *small);

#endif
