/*
 * fp8_linear.c - fp8_linear, which only CUDA has.
 */
#include "bind/python/quantized/int8.h"

static ptac_reason read_nothing(PyObject *const *args, ptac_quantized_args *read)
{
    (void)args;
    (void)read;
    return PTAC_DEVICE;
}

/* fp8_linear(x, weight_fp8, scale, bias or None, n, k, activation=0) -> y or None */
PTAC_QUANTIZED_OP(fp8_linear, PTAC_OP_FP8_LINEAR, 7, 1,
                  "x, weight_fp8, scale, bias, n, k, activation", 3, read_nothing, NULL,
                  ptac_fp8_linear_on_cuda)
