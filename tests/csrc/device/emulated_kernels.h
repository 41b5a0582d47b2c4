/*
 * emulated_kernels.h - kernels of the program's .cu files, as a driver has them.
 */
#ifndef PTAC_TESTS_EMULATED_KERNELS_H
#define PTAC_TESTS_EMULATED_KERNELS_H

#include "device/cuda/driver.h"
#include "emulator.h"

/* What units are given in place of machine code: this text, and no other. */
extern const char emulated_machine_code[];

/* cuLibraryLoadData() and cuLibraryGetKernel(), without their options. */
cu_result emulated_library(cu_library *library, const void *code);
cu_result emulated_kernel(cu_kernel *kernel, cu_library library, const char *name);

#endif
