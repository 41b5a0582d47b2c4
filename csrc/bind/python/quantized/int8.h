/*
 * int8.h - reading the arguments of int8 operators, and of fp8_linear, which has those
 * of int8_linear.
 */
#ifndef PTAC_BIND_PYTHON_QUANTIZED_INT8_H
#define PTAC_BIND_PYTHON_QUANTIZED_INT8_H

#include "bind/python/module/pybind.h"
#include "ops/int8/conv/int8_conv2d.h"
#include "ops/int8/embedding/int8_embedding.h"
#include "ops/int8/int8_linear.h"
#include "ops/int8/sublayer/int8_sublayer.h"

/*
 * A plain, contiguous tensor of that dtype of torch's and, unless it is negative, so
 * many elements. False with nothing set where it is something else.
 */
bool ptac_int8_read(PyObject *tensor, int32_t dtype, int64_t n_elements,
                    ptac_view *view);

/* A Python int; false with an exception set where it is none, or below least. */
bool ptac_int8_size(PyObject *number, int64_t least, int64_t *size);

/* The arguments of a call, read. */
typedef struct ptac_quantized_args {
    union {
        ptac_int8_linear linear;
        ptac_int8_conv2d conv2d;
        ptac_int8_embedding embedding;
        ptac_int8_sublayer sublayer;
    } params;
    ptac_call call; /* but for the output */
    at_tensor copy; /* of the first argument, where that has gaps; owned, or NULL */
    Py_ssize_t n_args;
} ptac_quantized_args;

/* An operator: what its arguments are, how they are read, and what its output is. */
typedef struct ptac_quantized_op {
    ptac_op op;
    int n_args;
    int n_optional; /* the last of them, which may be left out */
    const char *args;
    int bias; /* the place among the arguments; 0 where there is none */
    ptac_reason (*read)(PyObject *const *args, ptac_quantized_args *read);
    /* Owned, or NULL. Not asked for calls that read refuses. */
    at_tensor (*new_output)(const ptac_quantized_args *read);
    /* All of a call whose first argument is on a CUDA device; NULL: stock's. */
    PyObject *(*on_cuda)(PyObject *const *args, Py_ssize_t n_args, bool is_kernel);
} ptac_quantized_op;

extern const ptac_quantized_op ptac_int8_linear_op, ptac_int8_conv2d_op,
    ptac_int8_embedding_op, ptac_fp8_linear_op;

/*
 * The operator's output, or None where the caller has to compute by dequantized
 * weights. is_kernel is the call of our operator in the dispatcher, whose refusals are
 * counted. Calls from modules, which it is not, go there where the thread has a mode or
 * a gradient is asked of the first argument or of the bias.
 *
 * The row runs without the interpreter's lock. It reads arguments of the caller's,
 * which live as long as the call, and a copy that we own. Others may resize those
 * tensors meanwhile, so that sizes are not read again. Giving a tensor other memory, as
 * tensor.set_() does, races with us as with any operator of torch's.
 */
PyObject *ptac_quantized_call(const ptac_quantized_op *op, PyObject *const *args,
                              Py_ssize_t n_args, bool is_kernel);

/* A tensor's floats as m rows of its last dimension, k of them; or why it has none. */
ptac_reason ptac_int8_rows(at_tensor tensor, int64_t k, ptac_view *view, int64_t *m);

/*
 * What the first argument's memory is read from: a dense copy of the tensor, which read
 * owns. PTAC_MEMORY where there is none for it.
 */
ptac_reason ptac_int8_copy(at_tensor tensor, bool channels_last,
                           ptac_quantized_args *read);

/* activation, an optional argument; false where it is none that rows compute. */
bool ptac_int8_activation(PyObject *const *args, const ptac_quantized_args *read,
                          int at, bool *is_relu);

/* ptac_<name>_op and its methods: name(...) for modules, name_kernel(...) for torch. */
#define PTAC_QUANTIZED_OP(name, ...)                                                   \
    const ptac_quantized_op ptac_##name##_op = {__VA_ARGS__};                          \
    PTAC_FASTCALL(name)                                                                \
    {                                                                                  \
        return ptac_quantized_call(&ptac_##name##_op, args, n_args, false);            \
    }                                                                                  \
    PTAC_FASTCALL(name##_kernel)                                                       \
    {                                                                                  \
        return ptac_quantized_call(&ptac_##name##_op, args, n_args, true);             \
    }

PyObject *ptac_int8_linear_on_cuda(PyObject *const *args, Py_ssize_t n_args,
                                   bool is_kernel);
PyObject *ptac_fp8_linear_on_cuda(PyObject *const *args, Py_ssize_t n_args,
                                  bool is_kernel);

/* New floats, owned, or NULL: sizes are the first n_dims of a tensor, and last. */
at_tensor ptac_int8_new_rows(const ptac_view *like, int n_dims, int64_t last);

#endif
