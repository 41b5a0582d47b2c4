/*
 * lean_call.h - what call paths to operators that programs call by name have in common:
 * reading, making and running, on the CPU and on CUDA.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_LEAN_CALL_H
#define PTAC_BIND_PYTHON_CALLPATH_LEAN_CALL_H

#include "bind/python/callpath/lean.h"

/* From where a call comes, as Python says it. */
typedef enum ptac_lean_from {
    PTAC_LEAN_ALONE,   /* a program, without a gradient */
    PTAC_LEAN_TRAINED, /* likewise with one */
    PTAC_LEAN_KERNEL,  /* the dispatcher, below autograd, of an operator of ours */
} ptac_lean_from;

ptac_lean_from ptac_lean_from_of(PyObject *number);

/* A call, the tensors that it makes, and how many of these Python sees. */
typedef struct ptac_lean_call {
    ptac_call call;
    at_tensors made;
    int n_results;
    ptac_lean_from from;
} ptac_lean_call;

/* What a plain tensor on a CUDA device is, or why it is none. */
ptac_reason ptac_view_on_cuda(PyObject *tensor, ptac_view *view);

/*
 * Plain tensors on the CPU, or on one CUDA device, where the call is from now on; to
 * these places among the inputs, contiguous. None is a view of nothing, whose dtype no
 * row takes. Or why they are not.
 */
ptac_reason ptac_lean_read(PyObject *const *tensors, const int *places, int n,
                           ptac_call *call);

/* Make tensor i, contiguous: the row's output of that place. False without memory. */
bool ptac_lean_output(ptac_lean_call *m, int i, int place, int32_t dtype, int n_dims,
                      const int64_t *sizes);

/* Likewise CHW or NCHW images, dense in that memory format. */
bool ptac_lean_images(ptac_lean_call *m, int i, int place, int32_t dtype, int n_dims,
                      const int64_t *sizes, bool channels_last);

/* The row of a call that was read, or NULL, counted. */
const ptac_kernel *ptac_lean_admit(ptac_call *call, ptac_lean_from from,
                                   ptac_reason why);

/* Called without the interpreter's lock; on CUDA with the device's context. */
typedef bool (*ptac_lean_maker)(ptac_lean_call *m);

/* Make the outputs and run; false for torch's own operators, counted. */
bool ptac_lean_make_and_run(const ptac_kernel *row, ptac_lean_call *m,
                            ptac_lean_maker make_outputs);

/* The results as a tuple, in which None stands for a tensor that was not made. */
PyObject *ptac_lean_results(ptac_lean_call *m);

/*
 * Both of a row, or None where there is none or it has not run. Gives back what m has
 * made.
 */
PyObject *ptac_lean_run(ptac_lean_call *m, const ptac_kernel *row,
                        ptac_lean_maker make_outputs);

/*
 * All of that for a call whose arguments have been read, or why they have not been:
 * the results, or None for torch's own operators.
 */
PyObject *ptac_lean_finish(ptac_lean_call *m, ptac_reason why,
                           ptac_lean_maker make_outputs);

#endif
