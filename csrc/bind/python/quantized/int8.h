/*
 * int8.h - reading the arguments of int8 operators.
 */
#ifndef PTAC_BIND_PYTHON_QUANTIZED_INT8_H
#define PTAC_BIND_PYTHON_QUANTIZED_INT8_H

#include "bind/python/module/pybind.h"

enum {
    PTAC_INT8_MOST_DIMS = 16,
};

/*
 * A plain, contiguous tensor of that dtype of torch's and, unless it is negative, so
 * many elements. False with nothing set where it is something else.
 */
bool ptac_int8_read(PyObject *tensor, int32_t dtype, int64_t n_elements,
                    ptac_view *view);

/* A Python int; false with an exception set where it is none, or below least. */
bool ptac_int8_size(PyObject *number, int64_t least, int64_t *size);

/* The tensor without gaps, owned: itself or a copy; NULL without memory. */
at_tensor ptac_int8_dense(at_tensor tensor, bool channels_last);

/*
 * Whether a call from a module takes this way: the operator is on, the thread has no
 * mode, and no gradient is asked of x or bias, which is None or a tensor. What does
 * not, comes back by way of the dispatcher and is counted there. -1 with an exception
 * set.
 */
int ptac_int8_is_lean(ptac_op op, PyObject *x, PyObject *bias);

/*
 * The row for a call that was read, or NULL. Refusals of kernels are counted; those of
 * modules come again by way of the dispatcher.
 */
const ptac_kernel *ptac_int8_admit(ptac_call *call, ptac_reason why, bool is_kernel);

/*
 * Run a call, whose output is made already, without the interpreter's lock. What it
 * reads are arguments of the caller's, which live as long as the call, and copies that
 * we own; sizes may not be read any more, since others may resize those tensors. Who
 * gives them other memory meanwhile, as tensor.set_() does, races with us as with any
 * operator of torch's. False where y is NULL.
 */
bool ptac_int8_run(const ptac_kernel *row, ptac_call *call, at_tensor y);

/* A new contiguous tensor on the CPU, owned; NULL without memory. */
at_tensor ptac_int8_new(int n_dims, const int64_t *sizes, int32_t dtype);

#endif
