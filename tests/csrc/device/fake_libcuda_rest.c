/*
 * fake_libcuda_rest.c - all functions of the driver that fake_libcuda.c does not have.
 *
 * They are there to be found and refuse to work.
 */
#include "device/cuda/driver.h"

int not_supported(void);

int not_supported(void)
{
    return 801; /* the driver's number */
}

#define F(member, symbol, parameters)                                                  \
    int symbol(void) __attribute__((weak, alias("not_supported")));
PTAC_CUDA_FUNCTIONS(F)
F(launch, cuLaunchKernel, ())
