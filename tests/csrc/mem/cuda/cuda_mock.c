/*
 * cuda_mock.c - memory, contexts and rules of the driver that is none.
 *
 * Streams and events are in cuda_mock_streams.c. One thread at a time.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda_mock.h"
#include "cuda_mock_parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_HANDLES = 2048,
    MAX_RANGES = 512,
    MAX_HOST = 64,
};

typedef struct handle {
    int fd;
    size_t bytes; /* 0: the slot is free */
    bool is_owned;
    int n_maps;
} handle;

typedef struct range {
    uintptr_t base;
    size_t bytes; /* 0: the slot is free */
} range;

typedef struct mapping {
    uintptr_t base;
    size_t bytes; /* 0: the slot is free */
    int handle;
    bool is_accessible;
} mapping;

static handle handles[MAX_HANDLES];
static range ranges[MAX_RANGES];
static mapping mappings[MAX_HANDLES];
static range hosts[MAX_HOST];
static size_t limit = (size_t)1 << 30, used;
static int n_violations;
static char last_violation[200];
static long n_calls, fail_at;
static bool has_failed;
static _Thread_local int n_contexts;
static _Thread_local int capture_mode;

void mock_violate(const char *what)
{
    n_violations++;
    snprintf(last_violation, sizeof last_violation, "%s", what);
}

bool mock_fails(void)
{
    const bool fails = ++n_calls == fail_at;

    has_failed |= fails;
    return fails;
}

void mock_need_context(const char *what)
{
    if (n_contexts == 0)
        mock_violate(what);
}

/* Calls that graph capture forbids, unless this thread has asked for leave. */
static void need_no_capture(const char *what)
{
    if (mock_is_capturing() && capture_mode != PTAC_CU_CAPTURE_MODE_RELAXED)
        mock_violate(what);
}

void mock_reset(size_t memory)
{
    limit = memory;
    n_violations = 0;
    last_violation[0] = 0;
    n_calls = fail_at = 0;
    has_failed = false;
    mock_streams_reset();
}

int mock_leftovers(void)
{
    int n = mock_events_left();

    for (int i = 0; i < MAX_HANDLES; i++)
        n += (handles[i].bytes > 0) + (mappings[i].bytes > 0);
    for (int i = 0; i < MAX_RANGES; i++)
        n += ranges[i].bytes > 0;
    for (int i = 0; i < MAX_HOST; i++)
        n += hosts[i].bytes > 0;
    return n;
}

size_t mock_used(void)
{
    return used;
}

int mock_violations(void)
{
    return n_violations;
}

const char *mock_violation(void)
{
    return last_violation;
}

void mock_fail_at(long n)
{
    n_calls = 0;
    fail_at = n;
    has_failed = false;
}

long mock_calls(void)
{
    return n_calls;
}

bool mock_has_failed(void)
{
    return has_failed;
}

bool mock_is_usable(uintptr_t at, size_t bytes)
{
    for (int i = 0; bytes > 0 && i < MAX_HANDLES; i++) {
        const mapping *m = &mappings[i];

        if (m->bytes == 0 || at < m->base || at >= m->base + m->bytes)
            continue;
        if (!m->is_accessible)
            return false;

        const size_t here = m->base + m->bytes - at;

        if (here >= bytes)
            return true;
        at += here;
        bytes -= here;
        i = -1;
    }
    return bytes == 0;
}

/* --- the driver's functions ----------------------------------------------------- */

MOCK_API cu_result cuInit(unsigned int flags)
{
    return flags ? MOCK_INVALID_VALUE : PTAC_CU_OK;
}

MOCK_API cu_result cuGetErrorString(cu_result result, const char **text)
{
    *text = result == PTAC_CU_OUT_OF_MEMORY ? "out of memory" : "mock error";
    return PTAC_CU_OK;
}

MOCK_API cu_result cuDeviceGetCount(int *n)
{
    *n = 1;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuDeviceGet(cu_device *device, int number)
{
    *device = number;
    return number == 0 ? PTAC_CU_OK : MOCK_INVALID_VALUE;
}

MOCK_API cu_result cuDeviceGetName(char *name, int bytes, cu_device device)
{
    (void)device;
    snprintf(name, (size_t)bytes, "mock");
    return PTAC_CU_OK;
}

MOCK_API cu_result cuDeviceGetAttribute(int *value, cu_attribute what, cu_device device)
{
    (void)device;
    *value = what == PTAC_CU_ATTRIBUTE_VMM;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    (void)device;
    *bytes = limit;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    (void)device;
    *context = (cu_context)&n_violations;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuCtxPushCurrent_v2(cu_context context)
{
    if (context != (cu_context)&n_violations)
        mock_violate("pushed a context that is none");
    n_contexts++;
    return PTAC_CU_OK;
}

/* There is one device, and so one context. */
MOCK_API cu_result cuCtxGetCurrent(cu_context *context)
{
    *context = n_contexts > 0 ? (cu_context)&n_violations : NULL;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    *context = (cu_context)&n_violations;
    if (n_contexts-- == 0)
        mock_violate("popped a context that was not pushed");
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemGetInfo_v2(size_t *free, size_t *total)
{
    mock_need_context("cuMemGetInfo without a context");
    *free = limit - used;
    *total = limit;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemGetAllocationGranularity(size_t *bytes, const cu_prop *prop,
                                                 cu_granularity option)
{
    (void)option;
    *bytes = MOCK_GRANULARITY;
    return prop->type == PTAC_CU_ALLOCATION_PINNED &&
                   prop->location.type == PTAC_CU_LOCATION_DEVICE
               ? PTAC_CU_OK
               : MOCK_INVALID_VALUE;
}

static void *no_access(void *where, size_t bytes, int flags)
{
    return mmap(where, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

MOCK_API cu_result cuMemAddressReserve(cu_address *at, size_t bytes, size_t alignment,
                                       cu_address hint, unsigned long long flags)
{
    uintptr_t start, base;
    int i = 0;

    if (bytes == 0 || bytes % MOCK_GRANULARITY || alignment & (alignment - 1) || hint ||
        flags)
        return MOCK_INVALID_VALUE;
    while (i < MAX_RANGES && ranges[i].bytes > 0)
        i++;
    if (i == MAX_RANGES || mock_fails())
        return PTAC_CU_OUT_OF_MEMORY;
    start = (uintptr_t)no_access(NULL, bytes + alignment, 0);
    if (start == (uintptr_t)MAP_FAILED)
        return PTAC_CU_OUT_OF_MEMORY;
    base = alignment ? (start + alignment - 1) & ~(uintptr_t)(alignment - 1) : start;
    if (base > start)
        munmap((void *)start, base - start);
    if (start + alignment > base)
        munmap((void *)(base + bytes), start + alignment - base);
    ranges[i] = (range){base, bytes};
    *at = base;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemAddressFree(cu_address at, size_t bytes)
{
    for (int i = 0; i < MAX_HANDLES; i++) {
        if (mappings[i].bytes == 0 || mappings[i].base < at ||
            mappings[i].base >= at + bytes)
            continue;
        mock_violate("addresses freed while memory is mapped there");
        return MOCK_INVALID_VALUE;
    }
    for (int i = 0; i < MAX_RANGES; i++) {
        if (ranges[i].bytes != bytes || ranges[i].base != at)
            continue;
        munmap((void *)(uintptr_t)at, bytes);
        ranges[i].bytes = 0;
        return PTAC_CU_OK;
    }
    mock_violate("addresses freed that were not reserved");
    return MOCK_INVALID_VALUE;
}

MOCK_API cu_result cuMemCreate(cu_handle *made, size_t bytes, const cu_prop *prop,
                               unsigned long long flags)
{
    int i = 0;

    (void)prop;
    need_no_capture("cuMemCreate during a capture");
    if (bytes == 0 || bytes % MOCK_GRANULARITY || flags)
        return MOCK_INVALID_VALUE;
    while (i < MAX_HANDLES && handles[i].bytes > 0)
        i++;
    if (mock_fails() || i == MAX_HANDLES || used + bytes > limit)
        return PTAC_CU_OUT_OF_MEMORY;
    handles[i].fd = memfd_create("device", MFD_CLOEXEC);
    if (handles[i].fd < 0 || ftruncate(handles[i].fd, (off_t)bytes) != 0)
        return PTAC_CU_OUT_OF_MEMORY;
    handles[i].bytes = bytes;
    handles[i].is_owned = true;
    handles[i].n_maps = 0;
    used += bytes;
    *made = (cu_handle)i + 1;
    return PTAC_CU_OK;
}

/* Memory goes when it is neither owned nor mapped. */
static void drop(handle *h)
{
    if (h->is_owned || h->n_maps > 0)
        return;
    used -= h->bytes;
    close(h->fd);
    h->bytes = 0;
}

MOCK_API cu_result cuMemRelease(cu_handle number)
{
    handle *h = &handles[number - 1];

    if (number == 0 || number > MAX_HANDLES || h->bytes == 0 || !h->is_owned) {
        mock_violate("released memory that is not ours");
        return MOCK_INVALID_VALUE;
    }
    if (mock_fails())
        return MOCK_FAILURE;
    h->is_owned = false;
    drop(h);
    return PTAC_CU_OK;
}

static bool is_reserved(uintptr_t at, size_t bytes)
{
    for (int i = 0; i < MAX_RANGES; i++)
        if (ranges[i].bytes > 0 && at >= ranges[i].base &&
            at + bytes <= ranges[i].base + ranges[i].bytes)
            return true;
    return false;
}

MOCK_API cu_result cuMemMap(cu_address at, size_t bytes, size_t offset,
                            cu_handle number, unsigned long long flags)
{
    handle *h = &handles[number - 1];
    int slot = -1;

    need_no_capture("cuMemMap during a capture");
    if (number == 0 || number > MAX_HANDLES || !h->is_owned || bytes != h->bytes ||
        offset || flags || at % MOCK_GRANULARITY || !is_reserved(at, bytes)) {
        mock_violate("cuMemMap of what cannot be mapped");
        return MOCK_INVALID_VALUE;
    }
    for (int i = 0; i < MAX_HANDLES; i++) {
        const mapping *m = &mappings[i];

        if (m->bytes == 0) {
            slot = i;
        } else if (m->base < at + bytes && at < m->base + m->bytes) {
            mock_violate("mapped twice");
            return MOCK_INVALID_VALUE;
        }
    }
    if (slot < 0 || mock_fails() ||
        mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd,
             0) == MAP_FAILED)
        return PTAC_CU_OUT_OF_MEMORY;
    mappings[slot] = (mapping){.base = at, .bytes = bytes, .handle = (int)number - 1};
    h->n_maps++;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemUnmap(cu_address at, size_t bytes)
{
    need_no_capture("cuMemUnmap during a capture");
    for (int i = 0; i < MAX_HANDLES; i++) {
        mapping *m = &mappings[i];

        if (m->bytes == 0 || m->base != at || m->bytes != bytes)
            continue;
        if (mock_fails())
            return MOCK_FAILURE;
        no_access((void *)(uintptr_t)at, bytes, MAP_FIXED);
        m->bytes = 0;
        handles[m->handle].n_maps--;
        drop(&handles[m->handle]);
        return PTAC_CU_OK;
    }
    mock_violate("cuMemUnmap of what is no whole mapping");
    return MOCK_INVALID_VALUE;
}

MOCK_API cu_result cuMemSetAccess(cu_address at, size_t bytes, const cu_access *access,
                                  size_t n)
{
    size_t covered = 0;

    need_no_capture("cuMemSetAccess during a capture");
    if (mock_fails())
        return PTAC_CU_OUT_OF_MEMORY;
    for (int i = 0; i < MAX_HANDLES; i++)
        if (mappings[i].bytes > 0 && mappings[i].base >= at &&
            mappings[i].base + mappings[i].bytes <= at + bytes)
            covered += mappings[i].bytes;
    if (covered != bytes || n != 1 || access->flags != PTAC_CU_ACCESS_READ_WRITE) {
        mock_violate("cuMemSetAccess of what is not mapped");
        return MOCK_INVALID_VALUE;
    }
    for (int i = 0; i < MAX_HANDLES; i++)
        if (mappings[i].bytes > 0 && mappings[i].base >= at &&
            mappings[i].base < at + bytes)
            mappings[i].is_accessible = true;
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) == 0
               ? PTAC_CU_OK
               : PTAC_CU_OUT_OF_MEMORY;
}

MOCK_API cu_result cuThreadExchangeStreamCaptureMode(cu_capture_mode *mode)
{
    const int before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    int slot = -1;

    mock_need_context("cuMemHostRegister without a context");
    if (bytes == 0 || (uintptr_t)memory % 4096 || bytes % 4096 ||
        flags != PTAC_CU_HOST_REGISTER_PORTABLE)
        return MOCK_INVALID_VALUE;
    for (int i = 0; i < MAX_HOST; i++) {
        const uintptr_t at = (uintptr_t)memory;

        if (hosts[i].bytes == 0) {
            slot = i;
        } else if (hosts[i].base < at + bytes && at < hosts[i].base + hosts[i].bytes) {
            mock_violate("host memory registered twice");
            return MOCK_INVALID_VALUE;
        }
    }
    if (slot < 0 || mock_fails())
        return PTAC_CU_OUT_OF_MEMORY;
    hosts[slot] = (range){(uintptr_t)memory, bytes};
    return PTAC_CU_OK;
}

MOCK_API cu_result cuMemHostUnregister(void *memory)
{
    mock_need_context("cuMemHostUnregister without a context");
    if (mock_fails())
        return MOCK_FAILURE;
    for (int i = 0; i < MAX_HOST; i++) {
        if (hosts[i].bytes == 0 || hosts[i].base != (uintptr_t)memory)
            continue;
        hosts[i].bytes = 0;
        return PTAC_CU_OK;
    }
    mock_violate("host memory unregistered that was not registered");
    return MOCK_INVALID_VALUE;
}
