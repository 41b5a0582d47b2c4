/*
 * cuda_products.c - torch's settings of products on CUDA, and autocast's.
 */
#include "bind/python/callpath/linear/cuda_products.h"

#include "bind/torch/autocast.h"
#include "bind/torch/cublaslt.h"

/* Bits of what pai_torchacc/fusion/linear/on_cuda.py gives; none: all goes to stock. */
enum {
    TAKES_F32 = 1,
    TAKES_F16 = 2,
    TAKES_BF16 = 4,
    ALLOWS_TF32 = 8,
};

PTAC_LENT(cuda_products) /* returns what torch's settings say of products on CUDA */

static bool would_be_cast(ptac_dtype dtype)
{
    return ptac_thread_autocasts_on(PTAC_ON_CUDA) && dtype != ptac_autocast_dtype();
}

ptac_reason ptac_cuda_products(ptac_dtype dtype, bool *allows_tf32)
{
    static const long takes[PTAC_N_DTYPES] = {
        [PTAC_F32] = TAKES_F32,
        [PTAC_F16] = TAKES_F16,
        [PTAC_BF16] = TAKES_BF16,
    };
    PTAC_OWNED PyObject *said = PyObject_CallNoArgs(cuda_products);
    const long bits = said && PyLong_Check(said) ? PyLong_AsLong(said) : 0;

    PyErr_Clear();
    *allows_tf32 = bits & ALLOWS_TF32;
    if (bits == 0)
        return PTAC_MODE;
    if (dtype >= PTAC_N_DTYPES || !takes[dtype])
        return PTAC_DTYPE;
    if (would_be_cast(dtype))
        return PTAC_AUTOCAST;
    return bits & takes[dtype] ? PTAC_TAKE : PTAC_PRECISION;
}

ptac_reason ptac_cuda_why_shut(ptac_op op)
{
    const ptac_reason gate = ptac_chooser_gate_on(PTAC_ON_CUDA, op);

    return !gate && ptac_thread_is_disabled() ? PTAC_DISABLED : gate;
}

/* cublaslt_version() -> 120900 for 12.9, or why there is no cuBLASLt */
PTAC_NOARGS(cublaslt_version)
{
    const char *why;
    const size_t version = ptac_lt_version(&why);

    return why ? PyUnicode_FromString(why) : PyLong_FromSize_t(version);
}

/* cublaslt_trouble() -> why layers on CUDA have no cuBLASLt, or None. */
PTAC_NOARGS(cublaslt_trouble)
{
    const char *why = ptac_lt_trouble();

    return why ? PyUnicode_FromString(why) : Py_NewRef(Py_None);
}
