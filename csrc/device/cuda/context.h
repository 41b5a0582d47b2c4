/*
 * context.h - a device's primary context, which torch's calls run in, for ours.
 */
#ifndef PTAC_DEVICE_CUDA_CONTEXT_H
#define PTAC_DEVICE_CUDA_CONTEXT_H

#include "device/cuda/driver.h"

/* What to take back; {false} where nothing has been entered. */
typedef struct ptac_cuda_scope {
    bool is_entered;
} ptac_cuda_scope;

/*
 * Have the device's primary context be this thread's. Where it is already, nothing is
 * done. The driver is loaded; the device is one that torch has memory on, so that its
 * context exists. False where the driver refuses.
 */
bool ptac_cuda_scope_enter(int device, ptac_cuda_scope *scope);

/* Give the thread back the context that it had. */
void ptac_cuda_scope_leave(ptac_cuda_scope *scope);

/*
 * A number that the driver tells of a device, PTAC_CU_ATTRIBUTE_MULTIPROCESSORS or
 * another; 0 where it has not been found, or tells none.
 */
int ptac_cuda_attribute(int device, cu_attribute attribute);

/* A scope that is left with the block it is declared in. */
#define PTAC_CUDA_SCOPE __attribute__((cleanup(ptac_cuda_scope_leave))) ptac_cuda_scope

#endif
