/*
 * allocator_got.c - the route by libc10's imports of posix_memalign and free.
 *
 * torch's CPU allocator is posix_memalign(64) and free. Pointing these two imports at
 * us leaves everything else of it (profiler, error texts, fill flags) and everybody
 * else's malloc as it is. What was found in the slots is what we forward to: libc's
 * functions, those of a preloaded malloc, or somebody's hook.
 */
#include "bind/abi/got.h"
#include "bind/abi/torch_abi.h"
#include "bind/torch/allocator/cpu_allocator.h"

#include <stdlib.h>

typedef int (*memalign_fn)(void **memory, size_t alignment, size_t bytes);
typedef void (*free_fn)(void *memory);

static got_slots memalign_slots, free_slots;
static memalign_fn their_memalign;
static free_fn their_free;
static bool is_overtaken; /* slots that others have changed lead to us through them */

static int our_memalign(void **memory, size_t alignment, size_t bytes)
{
    return ptac_cpu_serve(memory, alignment, bytes, their_memalign);
}

static void our_free(void *memory)
{
    if (!ptac_cpu_take_back(memory))
        their_free(memory);
}

/* Finds the slots anew, unless something of ours is still in them. */
static const char *find(ptac_cpu_state before)
{
    void *c10 = ptac_torch_c10();

    if (before != PTAC_CPU_OFF || is_overtaken)
        return NULL;
    if (!c10 || !got_find(c10, "posix_memalign", &memalign_slots) ||
        !got_find(c10, "free", &free_slots))
        return "torch's libc10 does not import posix_memalign and free";
    their_memalign = (memalign_fn)got_function(c10, "posix_memalign", &memalign_slots);
    their_free = (free_fn)got_function(c10, "free", &free_slots);
    return NULL;
}

/* Where others have written after us, writing again would close a circle. */
static bool install(ptac_cpu_state before)
{
    if (is_overtaken)
        return true;
    if (before == PTAC_CPU_OFF && !got_write(&free_slots, (uintptr_t)our_free))
        return false;
    if (got_write(&memalign_slots, (uintptr_t)our_memalign))
        return true;
    if (before == PTAC_CPU_OFF)
        got_restore(&free_slots, (uintptr_t)our_free);
    return false;
}

static void stop_requests(void)
{
    is_overtaken |= !got_restore(&memalign_slots, (uintptr_t)our_memalign);
}

static void stop_frees(void)
{
    is_overtaken |= !got_restore(&free_slots, (uintptr_t)our_free);
}

const ptac_cpu_route ptac_route_imports = {"imports", find, install, stop_requests,
                                           stop_frees};
