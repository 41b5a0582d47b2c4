/*
 * allocator_vtable.c - the route by an allocator object of our own, where libc10 has no
 * imports to write (it may hold a malloc of its own).
 *
 * The object has the virtual table of the allocator in force with two functions of ours
 * in it. That the layout is as we think is tried on the live allocator before anything
 * is changed. Storages made meanwhile keep our allocator for life: it serves their
 * resize_() by libc once it has been switched off.
 *
 * Sources: c10/core/Allocator.h, c10/util/UniqueVoidPtr.h, the Itanium C++ ABI.
 */
#include "bind/abi/torch_abi.h"
#include "bind/torch/allocator/cpu_allocator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* c10::DataPtr as libstdc++ and libc++ lay it out; returned in memory. */
typedef struct data_ptr {
    void *data;
    void (*deleter)(void *context);
    void *context;
    int8_t device_type, device_index;
} data_ptr;

enum {
    /* Functions of c10::Allocator in its virtual table. */
    ALLOCATE = 2,
    RAW_DELETER = 4,
    N_FUNCTIONS = 6, /* two destructors, is_simple_data_ptr, copy_data */
    N_BEFORE = 2,    /* words in front of them: offset to top, type information */
    PROBE_BYTES = 256,
};

typedef struct allocator {
    void **functions;
} allocator;

typedef data_ptr (*allocate_fn)(allocator *self, size_t bytes);
typedef void (*deleter_fn)(void *context);
typedef deleter_fn (*raw_deleter_fn)(allocator *self);

static void *table[N_BEFORE + N_FUNCTIONS];
static allocator ours = {.functions = table + N_BEFORE};
static allocator *theirs;

static allocator *in_force(void)
{
    const int8_t cpu = AT_DEVICE_CPU;

    return T.c10_get_allocator(&cpu);
}

static void delete_storage(void *memory)
{
    if (!memory)
        return;
    T.c10_report_delete(T.c10_memory_reporter(), memory);
    if (!ptac_cpu_take_back(memory))
        free(memory);
}

static data_ptr allocate(allocator *self, size_t bytes)
{
    data_ptr result = {.deleter = delete_storage, .device_index = -1};
    char text[128];

    if (bytes == 0)
        return result;
    if (ptac_cpu_serve(&result.data, 64, bytes, posix_memalign) != 0) {
        snprintf(text, sizeof text,
                 "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                 "%zu bytes.",
                 bytes);
        T.aoti_torch_check(false, "allocate", __FILE__, __LINE__, text);
    }
    T.c10_report_new(T.c10_memory_reporter(), result.data, bytes);
    result.context = result.data;
    return result;
}

static deleter_fn raw_deleter(allocator *self)
{
    return delete_storage;
}

/* Whether a storage of the live allocator looks as we would make one. */
static bool layout_is_known(allocator *live)
{
    const allocate_fn make = (allocate_fn)live->functions[ALLOCATE];
    const raw_deleter_fn ask = (raw_deleter_fn)live->functions[RAW_DELETER];
    const data_ptr probe = make(live, PROBE_BYTES);
    const bool is_known = probe.data && probe.data == probe.context &&
                          probe.deleter == ask(live) &&
                          probe.device_type == AT_DEVICE_CPU &&
                          probe.device_index == -1 && (uintptr_t)probe.data % 64 == 0;

    if (is_known)
        probe.deleter(probe.context);
    return is_known;
}

static const char *find(ptac_cpu_state before)
{
    allocator *live;

    if (!T.c10_set_allocator || !T.c10_get_allocator || !T.c10_memory_reporter ||
        !T.c10_report_new || !T.c10_report_delete)
        return "torch does not offer its CPU allocator's functions";
    live = in_force();
    if (before != PTAC_CPU_OFF || live == &ours)
        return NULL;
    if (!live || !layout_is_known(live))
        return "torch's CPU allocator is laid out in a way that is not known";
    memcpy(table, live->functions - N_BEFORE, sizeof table);
    *(allocate_fn *)&ours.functions[ALLOCATE] = allocate;
    *(raw_deleter_fn *)&ours.functions[RAW_DELETER] = raw_deleter;
    theirs = live;
    return NULL;
}

static bool install(ptac_cpu_state before)
{
    T.c10_set_allocator(AT_DEVICE_CPU, &ours, 0);
    return in_force() == &ours; /* another may have a higher priority */
}

static void stop_requests(void)
{
    if (in_force() == &ours)
        T.c10_set_allocator(AT_DEVICE_CPU, theirs, 0);
}

/* Storages bring their deleter with them. */
static void stop_frees(void)
{
}

const ptac_cpu_route ptac_route_object = {"object", find, install, stop_requests,
                                          stop_frees};
