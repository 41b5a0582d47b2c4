/*
 * float_mode.c - what a thread computes with besides its operands, read and changed.
 */
#include "bind/python/module/pybind.h"

#ifdef __x86_64__
#include <xmmintrin.h>

enum {
    STATUS = 0x3f, /* exceptions that have been, which are no mode */
};

static uint32_t read_mode(void)
{
    return _mm_getcsr() & ~(uint32_t)STATUS;
}

static void write_mode(uint32_t mode)
{
    _mm_setcsr(mode | (_mm_getcsr() & STATUS));
}
#else
static uint32_t read_mode(void)
{
    uint64_t mode;

    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
}

static void write_mode(uint32_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#endif

/*
 * float_mode() -> how the thread rounds, and whether subnormal numbers are zeros to it:
 * what fesetround() and torch.set_flush_denormal() change, for set_float_mode(mode).
 */
PTAC_GIVES(float_mode, PyLong_FromUnsignedLong(read_mode()))

/* set_float_mode(mode): as float_mode() gave it. */
PTAC_OF_NUMBER(set_float_mode)
{
    write_mode((uint32_t)number);
    Py_RETURN_NONE;
}

/*
 * set_own_threads(n) -> whether this thread now shares its work among so many. Torch's
 * own function would also tell threads that have not asked yet.
 */
PTAC_OF_NUMBER(set_own_threads)
{
    void (*set)(int) = NULL;
    uint32_t now = 0;

    *(void **)&set = ptac_torch_symbol("omp_set_num_threads");
    if (!set || number < 1)
        Py_RETURN_FALSE;
    set((int)number);
    T.torch_get_num_threads(&now);
    return PyBool_FromLong((long)now == number);
}
