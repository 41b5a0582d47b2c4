/*
 * other_calls.cc - the driver's functions that no call of an operator may make.
 *
 * They allocate, wait, or map memory. Who calls one is told that it is not supported,
 * and tests see its name among the calls.
 */
#include "device.h"
#include "driver_parts.h"

extern "C" {
#include "device/cuda/driver.h"

#define F(member, symbol, parameters)                                                  \
    __attribute__((weak, visibility("default"))) cu_result symbol parameters           \
    {                                                                                  \
        enum { NOT_SUPPORTED = 801 };                                                  \
        const int error = note_call(#symbol);                                          \
                                                                                       \
        return error ? error : NOT_SUPPORTED;                                          \
    }
PTAC_CUDA_FUNCTIONS(F)
#undef F
}
