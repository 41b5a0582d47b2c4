/*
 * int8_linear_cuda.c - int8_linear, called with tensors on a CUDA device.
 */
#include "bind/python/quantized/int8.h"
#include "bind/torch/rows/int8_linear_cuda.h"

/* x, packed, scale, bias or None, n, k, activation */
static ptac_reason read_call(PyObject *const *args, const ptac_int8_args *given,
                             ptac_int8_on_cuda *call)
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
    *call = (ptac_int8_on_cuda){
        .x = ptac_borrow(args[0]),
        .packed = ptac_borrow(args[1]),
        .scales = ptac_borrow(args[2]),
        .bias = ptac_borrow_or_null(args[3]),
    };
    return ptac_int8_on_cuda_read(call, n, k, is_relu ? PTAC_ACT_RELU : PTAC_ACT_NONE);
}

PyObject *ptac_int8_linear_on_cuda(PyObject *const *args, Py_ssize_t n_args,
                                   bool is_kernel)
{
    const ptac_int8_args given = {.n_args = n_args};
    ptac_int8_on_cuda call;
    const ptac_reason why = read_call(args, &given, &call);

    if (PyErr_Occurred())
        return NULL;
    if (why && is_kernel)
        ptac_refuse(PTAC_OP_INT8_LINEAR, why);
    if (why || !PTAC_UNLOCKED(ptac_int8_on_cuda_run(&call, is_kernel)))
        Py_RETURN_NONE;
    return ptac_wrap(at_give(&call.y));
}
