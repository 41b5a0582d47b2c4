/*
 * float_mode.c - what a thread computes with besides its operands, read and changed.
 */
#include "bind/python/module/pybind.h"
#include "core/float_mode.h"

/* float_mode() -> the thread's, as set_float_mode(mode) takes it */
PTAC_GIVES(float_mode, PyLong_FromUnsignedLong(ptac_float_mode()))

/* set_float_mode(mode): as float_mode() gave it. */
PTAC_O(set_float_mode, mode)
{
    const unsigned long wanted = PyLong_AsUnsignedLong(mode);

    if (PyErr_Occurred())
        return NULL;
    ptac_set_float_mode((uint32_t)wanted);
    Py_RETURN_NONE;
}

/*
 * set_own_threads(n) -> whether this thread now shares its work among so many. Torch's
 * own function would also tell threads that have not asked yet.
 */
PTAC_O(set_own_threads, n)
{
    const long wanted = PyLong_AsLong(n);
    void (*set)(int) = NULL;
    uint32_t now = 0;

    if (PyErr_Occurred())
        return NULL;
    *(void **)&set = ptac_torch_symbol("omp_set_num_threads");
    if (!set || wanted < 1)
        Py_RETURN_FALSE;
    set((int)wanted);
    T.torch_get_num_threads(&now);
    return PyBool_FromLong((long)now == wanted);
}
