/*
 * driver.c - finding the CUDA driver, and a device of it.
 */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum {
    NOT_FOUND = 0,
    FOUND,
    STARTED,
};

ptac_cuda_functions ptac_cuda;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int state;
static char reason[256];

/* A child would wait for ever for a thread that it does not have. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static const char *find(const char *name)
{
    void *library;
    const char *missing = NULL;

    if (state >= FOUND)
        return NULL;
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "no NVIDIA driver: %s", dlerror());
        return reason;
    }
#define F(member, symbol, parameters)                                                  \
    *(void **)&ptac_cuda.member = dlsym(library, #symbol);                             \
    if (!ptac_cuda.member && !missing)                                                 \
        missing = #symbol;
    PTAC_CUDA_FUNCTIONS(F)
#undef F
#define F(member, symbol, parameters)                                                  \
    *(void **)&ptac_cuda.member = dlsym(library, #symbol);
    PTAC_CUDA_LAUNCH_FUNCTIONS(F)
#undef F
    if (missing) {
        snprintf(reason, sizeof reason, "the NVIDIA driver is too old: it lacks %s",
                 missing);
        return reason;
    }
    state = FOUND;
    return NULL;
}

static const char *start(const char *name)
{
    const char *missing = find(name);
    cu_result result;

    if (missing || state == STARTED)
        return missing;
    result = ptac_cuda.init(0);
    if (result != PTAC_CU_OK) {
        snprintf(reason, sizeof reason, "the NVIDIA driver does not start: %s",
                 ptac_cuda_text(result));
        return reason;
    }
    __atomic_store_n(&state, STARTED, __ATOMIC_RELEASE);
    return NULL;
}

static const char *locked(const char *(*does)(const char *), const char *name)
{
    const char *why;

    pthread_mutex_lock(&lock);
    why = does(name);
    pthread_mutex_unlock(&lock);
    return why;
}

const char *ptac_cuda_find(const char *name)
{
    return locked(find, name);
}

const char *ptac_cuda_load(const char *name)
{
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == STARTED)
        return NULL;
    return locked(start, name);
}

const char *ptac_cuda_text(cu_result result)
{
    const char *text = NULL;

    if (!ptac_cuda.error_text || ptac_cuda.error_text(result, &text) != PTAC_CU_OK)
        text = NULL;
    return text ? text : "unknown error";
}

/* 90 for 9.0, or 0. */
static int capability_of(int number)
{
    cu_device device;
    int major = 0, minor = 0;

    if (ptac_cuda.device_get(&device, number) != PTAC_CU_OK ||
        ptac_cuda.device_attribute(&major, PTAC_CU_ATTRIBUTE_MAJOR, device) !=
            PTAC_CU_OK ||
        ptac_cuda.device_attribute(&minor, PTAC_CU_ATTRIBUTE_MINOR, device) !=
            PTAC_CU_OK)
        return 0;
    return 10 * major + minor;
}

const char *ptac_cuda_target_of_machine(ptac_cuda_target *target)
{
    int n = 0;

    *target = (ptac_cuda_target){0};
    if (!ptac_cuda.library_load)
        return "driver too old: it lacks cuLibraryLoadData";
    if (!ptac_cuda.driver_version ||
        ptac_cuda.driver_version(&target->driver_version) != PTAC_CU_OK)
        return "the NVIDIA driver does not tell its version";
    if (ptac_cuda.device_count(&n) != PTAC_CU_OK || n < 1)
        return "the NVIDIA driver has no device";
    for (int i = 0; i < n && i < PTAC_CUDA_MOST_DEVICES; i++) {
        target->capability[i] = capability_of(i);
        if (!target->capability[i])
            return "the NVIDIA driver does not describe its devices";
        target->n_devices++;
    }
    return NULL;
}

static void describe(ptac_cuda_device *device, cu_device handle)
{
    int rdma = 0;

    device->prop = (cu_prop){
        .type = PTAC_CU_ALLOCATION_PINNED,
        .location = {.type = PTAC_CU_LOCATION_DEVICE, .id = device->number},
    };
    if (ptac_cuda.device_attribute(&rdma, PTAC_CU_ATTRIBUTE_VMM_RDMA, handle) ==
        PTAC_CU_OK)
        device->prop.flags.is_rdma_capable = rdma != 0;
    device->access = (cu_access){
        .location = device->prop.location,
        .flags = PTAC_CU_ACCESS_READ_WRITE,
    };
}

const char *ptac_cuda_device_open(ptac_cuda_device *device, int number)
{
    cu_device handle;
    int n = 0, has_vmm = 0;

    *device = (ptac_cuda_device){.number = number};
    if (ptac_cuda.device_count(&n) != PTAC_CU_OK || number < 0 || number >= n ||
        ptac_cuda.device_get(&handle, number) != PTAC_CU_OK)
        return "there is no such device";
    if (ptac_cuda.device_attribute(&has_vmm, PTAC_CU_ATTRIBUTE_VMM, handle) !=
            PTAC_CU_OK ||
        !has_vmm)
        return "the device has no virtual memory management";
    describe(device, handle);
    if (ptac_cuda.device_total(&device->total_bytes, handle) != PTAC_CU_OK ||
        ptac_cuda.context_retain(&device->context, handle) != PTAC_CU_OK)
        return "the device gives no context";
    if (ptac_cuda.granularity(&device->granularity, &device->prop,
                              PTAC_CU_GRANULARITY_MINIMUM) != PTAC_CU_OK)
        return "the driver does not tell its granularity";
    return NULL;
}

bool ptac_cuda_enter(const ptac_cuda_device *device)
{
    return ptac_cuda.context_push(device->context) == PTAC_CU_OK;
}

cu_result ptac_cuda_leave(cu_result result)
{
    cu_context left;

    ptac_cuda.context_pop(&left);
    return result;
}
