/*
 * cpu_allocator.c - which route is in force, and what all routes serve.
 */
#include "bind/torch/allocator/cpu_allocator.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const ptac_cpu_route *const routes[] = {&ptac_route_imports, &ptac_route_object};

static const ptac_cpu_route *route;
static ptac_fill fill;
static uintptr_t prober;                 /* a thread, or 0 */
static void *probe;                      /* what it was given, until it gives it back */
static bool was_reached, was_given_back; /* by its probe */

const ptac_cpu_route *ptac_cpu_route_at(int i)
{
    return i >= 0 && i < (int)(sizeof routes / sizeof *routes) ? routes[i] : NULL;
}

void ptac_cpu_allocator_begin_probe(void)
{
    was_reached = was_given_back = false;
    __atomic_store_n(&prober, (uintptr_t)pthread_self(), __ATOMIC_RELAXED);
}

bool ptac_cpu_allocator_end_probe(void)
{
    __atomic_store_n(&prober, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&probe, NULL, __ATOMIC_RELAXED);
    return was_reached && was_given_back;
}

/* Whether this is a request of the thread that probes. */
static bool is_probe(size_t bytes)
{
    const uintptr_t thread = __atomic_load_n(&prober, __ATOMIC_RELAXED);

    return __builtin_expect(thread != 0, 0) && thread == (uintptr_t)pthread_self() &&
           bytes >= PTAC_CPU_LEAST_BYTES;
}

/* One that fails has nothing to give back. */
static int serve_probe(void **memory, size_t alignment, size_t bytes,
                       int (*other)(void **memory, size_t alignment, size_t bytes))
{
    const int error = other(memory, alignment, bytes);

    was_reached = true;
    was_given_back = error != 0;
    if (!error)
        __atomic_store_n(&probe, *memory, __ATOMIC_RELAXED);
    return error;
}

int ptac_cpu_serve(void **memory, size_t alignment, size_t bytes,
                   int (*other)(void **memory, size_t alignment, size_t bytes))
{
    bool is_refused = false;
    void *found = NULL;
    int error = 0;

    if (is_probe(bytes))
        return serve_probe(memory, alignment, bytes, other);
    if (bytes >= PTAC_CPU_LEAST_BYTES && alignment <= 64)
        found = ptac_cpu_pool_alloc(bytes, &is_refused);
    if (is_refused)
        error = ENOMEM;
    else if (!found)
        error = other(&found, alignment, bytes);
    if (error == ENOMEM && !is_refused && ptac_cpu_pool_trim() > 0)
        error = other(&found, alignment, bytes);
    if (error == ENOMEM)
        ptac_cpu_pool_note_oom(bytes);
    if (error)
        return error;

    const ptac_fill wanted = __atomic_load_n(&fill, __ATOMIC_RELAXED);

    if (__builtin_expect(wanted != PTAC_FILL_NONE, 0) && found)
        memset(found, wanted == PTAC_FILL_ZERO ? 0 : 0xCD, bytes);
    *memory = found;
    return 0;
}

bool ptac_cpu_take_back(void *memory)
{
    static const char text[] = "pai_torchacc: a CPU storage was freed twice\n";

    if (!ptac_cpu_pool_owns(memory)) {
        if (memory && memory == __atomic_load_n(&probe, __ATOMIC_RELAXED))
            was_given_back = true;
        return false;
    }
    if (!ptac_cpu_pool_free(memory)) {
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        abort();
    }
    return true;
}

static void stop_requests(void)
{
    route->stop_requests();
    __atomic_store_n(&fill, PTAC_FILL_NONE, __ATOMIC_RELAXED);
}

const char *ptac_cpu_allocator_enable(const ptac_cpu_route *wanted,
                                      const ptac_cpu_pool_options *options)
{
    int64_t n_blocks;
    const ptac_cpu_state now = ptac_cpu_pool_state(&n_blocks);
    const char *trouble = NULL;

    if (now != PTAC_CPU_OFF && wanted != route)
        return "storages of another way to the allocator are still in use";
    route = wanted;
    trouble = route->find(now);
    if (!trouble)
        trouble = ptac_cpu_pool_open(options, route->install);
    if (!trouble)
        __atomic_store_n(&fill, options->fill, __ATOMIC_RELAXED);
    return trouble;
}

void ptac_cpu_allocator_disable(void)
{
    if (route)
        ptac_cpu_pool_shut(stop_requests, route->stop_frees);
}
