/*
 * quantized_linear_cuda.c - int8_linear and fp8_linear, called with tensors on a CUDA
 * device.
 */
#include "bind/python/quantized/int8.h"
#include "bind/torch/rows/cuda/quantized_linear_cuda.h"

/* x, weight, scale, bias or None, n, k, activation */
static ptac_reason read_call(PyObject *const *args, const ptac_quantized_args *given,
                             const ptac_linear_format *format,
                             ptac_quantized_on_cuda *call)
{
    int64_t n, k;
    bool is_relu;

    if (!ptac_int8_size(args[4], 1, &n) || !ptac_int8_size(args[5], 1, &k) ||
        !ptac_int8_activation(args, given, 6, &is_relu))
        return PTAC_ARGUMENT;

    const ptac_packed_shape shape = {.n = n, .c = k, .taps = 1, .groups = 1};

    if (!ptac_packed_is_sound(&shape))
        return PTAC_ARGUMENT;
    for (int i = 0; i < 4; i++)
        if ((i < 3 || args[i] != Py_None) && !ptac_is_plain_on_cuda(args[i]))
            return ptac_is_plain(args[i]) ? PTAC_DEVICE : PTAC_SUBCLASS;
    *call = (ptac_quantized_on_cuda){
        .format = format,
        .x = ptac_borrow(args[0]),
        .weight = ptac_borrow(args[1]),
        .scales = ptac_borrow(args[2]),
        .bias = ptac_borrow_or_null(args[3]),
    };
    return ptac_quantized_on_cuda_read(call, n, k,
                                       is_relu ? PTAC_ACT_RELU : PTAC_ACT_NONE);
}

static PyObject *run(const ptac_linear_format *format, PyObject *const *args,
                     Py_ssize_t n_args, bool is_kernel)
{
    const ptac_quantized_args given = {.n_args = n_args};
    ptac_quantized_on_cuda call;
    const ptac_reason why = read_call(args, &given, format, &call);

    if (PyErr_Occurred())
        return NULL;
    if (why && is_kernel)
        ptac_refuse(format->op, why);
    if (why || !PTAC_UNLOCKED(ptac_quantized_on_cuda_run(&call, is_kernel)))
        Py_RETURN_NONE;
    return ptac_wrap(at_give(&call.y));
}

PyObject *ptac_int8_linear_on_cuda(PyObject *const *args, Py_ssize_t n_args,
                                   bool is_kernel)
{
    return run(&ptac_int8_on_cuda, args, n_args, is_kernel);
}

PyObject *ptac_fp8_linear_on_cuda(PyObject *const *args, Py_ssize_t n_args,
                                  bool is_kernel)
{
    return run(&ptac_fp8_on_cuda, args, n_args, is_kernel);
}
