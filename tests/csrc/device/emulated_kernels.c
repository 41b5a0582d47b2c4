/*
 * emulated_kernels.c - one library, which holds all kernels of the program.
 */
#include "emulated_kernels.h"

#include <stdint.h>
#include <string.h>

enum {
    INVALID_VALUE = 1, /* the driver's numbers */
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
};

const char emulated_machine_code[] = "emulated";

cu_result emulated_library(cu_library *library, const void *code)
{
    if (strcmp(code, emulated_machine_code) != 0)
        return INVALID_IMAGE;
    *library = (cu_library)(uintptr_t)emulated_machine_code;
    return PTAC_CU_OK;
}

cu_result emulated_kernel(cu_kernel *kernel, cu_library library, const char *name)
{
    const void *found = emulator_find(name);

    if (library != (cu_library)(uintptr_t)emulated_machine_code)
        return INVALID_VALUE;
    *kernel = (cu_kernel)(uintptr_t)found;
    return found ? PTAC_CU_OK : NOT_FOUND;
}
