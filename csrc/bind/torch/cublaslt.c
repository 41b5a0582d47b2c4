/*
 * cublaslt.c - handles, made when a call first needs one.
 */
#include "bind/torch/cublaslt.h"

#include <pthread.h>

static const char *trouble;

const char *ptac_lt_trouble(void)
{
    return __atomic_load_n(&trouble, __ATOMIC_ACQUIRE);
}

/* Compute capability, 90 for 9.0; 0 where the driver does not tell. */
static int capability_of(int number)
{
    cu_device device;
    int major = 0, minor = 0;

    if (ptac_cuda.device_get(&device, number) ||
        ptac_cuda.device_attribute(&major, PTAC_CU_ATTRIBUTE_MAJOR, device) ||
        ptac_cuda.device_attribute(&minor, PTAC_CU_ATTRIBUTE_MINOR, device))
        return 0;
    return 10 * major + minor;
}

/* Another thread may be capturing a graph, which forbids allocations to all. */
static const char *open_device(int device)
{
    cu_capture_mode mode = PTAC_CU_CAPTURE_MODE_RELAXED;
    const bool is_relaxed = ptac_cuda.capture_mode && !ptac_cuda.capture_mode(&mode);
    const char *why = ptac_lt_open(device, capability_of(device));

    if (is_relaxed)
        ptac_cuda.capture_mode(&mode);
    return why;
}

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

size_t ptac_lt_version(const char **why)
{
    pthread_mutex_lock(&making);
    *why = ptac_lt_load(ptac_lt_names);
    pthread_mutex_unlock(&making);
    return *why ? 0 : ptac_lt.version();
}

static const char *make_handle(int device)
{
    const char *why;

    pthread_mutex_lock(&making);
    why = ptac_lt_load(ptac_lt_names);
    if (!why)
        why = open_device(device);
    pthread_mutex_unlock(&making);
    return why;
}

ptac_reason ptac_lt_begin(const ptac_call *call)
{
    const char *why;

    if (ptac_lt_on(call->device))
        return PTAC_TAKE;
    if (ptac_lt_trouble())
        return PTAC_DEVICE;
    if (ptac_cuda_is_capturing(call))
        return PTAC_COMPILING;
    why = make_handle(call->device);
    if (!why)
        return PTAC_TAKE;
    __atomic_store_n(&trouble, why, __ATOMIC_RELEASE);
    return PTAC_DEVICE;
}
