/*
 * context.c - primary contexts, retained when first needed, and for good, and what the
 * driver tells of devices.
 */
#include "device/cuda/context.h"

enum {
    MOST_DEVICES = 64, /* as torch */
};

static cu_context contexts[MOST_DEVICES];

/* Two threads may both retain it: it is the same, and counted twice. */
static cu_context context_of(int device)
{
    cu_context context;
    cu_device handle;

    if (device < 0 || device >= MOST_DEVICES)
        return NULL;
    context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
    if (context || ptac_cuda.device_get(&handle, device) ||
        ptac_cuda.context_retain(&context, handle))
        return context;
    __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
    return context;
}

bool ptac_cuda_scope_enter(int device, ptac_cuda_scope *scope)
{
    const cu_context context = context_of(device);
    cu_context now = NULL;

    if (!context || ptac_cuda.context_current(&now))
        return false;
    scope->is_entered = now != context && !ptac_cuda.context_push(context);
    return now == context || scope->is_entered;
}

void ptac_cuda_scope_leave(ptac_cuda_scope *scope)
{
    cu_context left;

    if (scope->is_entered)
        ptac_cuda.context_pop(&left);
    scope->is_entered = false;
}

int ptac_cuda_attribute(int device, cu_attribute attribute)
{
    cu_device handle;
    int value = 0;

    if (!ptac_cuda.device_get || ptac_cuda.device_get(&handle, device) ||
        ptac_cuda.device_attribute(&value, attribute, handle))
        return 0;
    return value;
}
