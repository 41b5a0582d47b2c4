/*
 * cublaslt.c - finding cuBLASLt, and a handle for each device.
 */
#include "device/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

ptac_lt_functions ptac_lt;

const char *const ptac_lt_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};

/* Names only: where they lie is the dynamic linker's business, and the system's. */
static void *open_first(const char *const names[], int flags)
{
    void *library = NULL;

    for (int i = 0; names[i] && !library; i++)
        library = dlopen(names[i], flags | RTLD_NOW | RTLD_LOCAL);
    return library;
}

static void *open_library(const char *const names[])
{
    void *library;

    if (!names)
        return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    library = open_first(names, RTLD_NOLOAD);
    return library ? library : open_first(names, 0);
}

const char *ptac_lt_load(const char *const names[])
{
    static char reason[256];
    static bool is_loaded;
    ptac_lt_functions found;
    const char *missing = NULL;
    void *library;

    if (is_loaded)
        return NULL;
    library = open_library(names);
    if (!library) {
        snprintf(reason, sizeof reason, "no cuBLASLt: %s", dlerror());
        return reason;
    }
#define F(member, symbol, result, parameters)                                          \
    *(void **)&found.member = dlsym(library, #symbol);                                 \
    if (!found.member && !missing)                                                     \
        missing = #symbol;
    PTAC_LT_FUNCTIONS(F)
#undef F
    if (missing) {
        snprintf(reason, sizeof reason, "cuBLASLt lacks %s", missing);
        dlclose(library);
        return reason;
    }
    ptac_lt = found;
    is_loaded = true;
    return NULL;
}

static ptac_lt_device devices[PTAC_LT_MAX_DEVICES];

const char *ptac_lt_open(int device, int capability)
{
    static char reason[96];
    lt_handle handle = NULL;
    lt_status status;

    if (device < 0 || device >= PTAC_LT_MAX_DEVICES)
        return "more devices than cuBLASLt has handles here";
    if (devices[device].handle)
        return NULL;
    status = ptac_lt.create(&handle);
    if (status != PTAC_LT_OK) {
        snprintf(reason, sizeof reason, "cublasLtCreate: %s",
                 ptac_lt.status_name(status));
        return reason;
    }
    devices[device].capability = capability;
    __atomic_store_n(&devices[device].handle, handle, __ATOMIC_RELEASE);
    return NULL;
}

const ptac_lt_device *ptac_lt_on(int device)
{
    if (device < 0 || device >= PTAC_LT_MAX_DEVICES ||
        !__atomic_load_n(&devices[device].handle, __ATOMIC_ACQUIRE))
        return NULL;
    return &devices[device];
}
