/*
 * cpu_allocator.c - posix_memalign and free as libc10 sees them.
 *
 * torch's CPU allocator is posix_memalign(64) and free. These two imports of libc10 are
 * pointed at us, which leaves everything else of torch's allocator (profiler, error
 * texts, fill flags) and everybody else's malloc as it is. What was found in the slots
 * is what we forward to: libc's functions, those of a preloaded malloc, or somebody's
 * hook.
 */
#include "bind/torch/cpu_allocator.h"

#include "bind/abi/torch_abi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*memalign_fn)(void **memory, size_t alignment, size_t bytes);
typedef void (*free_fn)(void *memory);

static got_slots memalign_slots, free_slots;
static memalign_fn their_memalign;
static free_fn their_free;
static ptac_hook_state state; /* written under the pool's lock */
static ptac_fill fill;
static bool was_overtaken;

static void fill_in(void *memory, size_t bytes)
{
    if (fill != PTAC_FILL_NONE)
        memset(memory, fill == PTAC_FILL_ZERO ? 0 : 0xCD, bytes);
}

static int our_memalign(void **memory, size_t alignment, size_t bytes)
{
    bool is_refused = false;
    int error = 0;

    *memory = NULL;
    if (bytes >= PTAC_CPU_LEAST_BYTES && alignment <= 64)
        *memory = ptac_cpu_pool_alloc(bytes, &is_refused);
    if (is_refused)
        return ENOMEM;
    if (!*memory)
        error = their_memalign(memory, alignment, bytes);
    if (__builtin_expect(fill != PTAC_FILL_NONE, 0) && !error)
        fill_in(*memory, bytes);
    return error;
}

static void our_free(void *memory)
{
    if (!ptac_cpu_pool_owns(memory)) {
        their_free(memory);
    } else if (!ptac_cpu_pool_free(memory)) {
        static const char text[] = "pai_torchacc: a CPU storage was freed twice\n";

        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        abort();
    }
}

/*
 * Called with the pool's lock held. Slots that others have changed after us lead to us
 * through them: writing there again would close a circle.
 */
static bool install(void)
{
    const uintptr_t memalign_now = (uintptr_t)our_memalign;
    const uintptr_t free_now = (uintptr_t)our_free;

    if (was_overtaken) {
        state = PTAC_HOOK_ON;
        return true;
    }
    if (state == PTAC_HOOK_OFF && !got_write(&free_slots, free_now))
        return false;
    if (!got_write(&memalign_slots, memalign_now)) {
        if (state == PTAC_HOOK_OFF)
            got_restore(&free_slots, free_now);
        return false;
    }
    state = PTAC_HOOK_ON;
    return true;
}

static void stop_requests(void)
{
    was_overtaken |= !got_restore(&memalign_slots, (uintptr_t)our_memalign);
    fill = PTAC_FILL_NONE;
    state = PTAC_HOOK_DRAINING;
}

static void stop_frees(void)
{
    was_overtaken |= !got_restore(&free_slots, (uintptr_t)our_free);
    state = PTAC_HOOK_OFF;
}

/* Finds the slots anew, unless something of ours is still in them. */
static const char *find_slots(void)
{
    void *c10 = ptac_torch_c10();

    if (state != PTAC_HOOK_OFF || was_overtaken)
        return NULL;
    if (!c10 || !got_find(c10, "posix_memalign", &memalign_slots) ||
        !got_find(c10, "free", &free_slots))
        return "torch's libc10 does not import posix_memalign and free";
    their_memalign = (memalign_fn)got_function(c10, "posix_memalign", &memalign_slots);
    their_free = (free_fn)got_function(c10, "free", &free_slots);
    return NULL;
}

const char *ptac_cpu_allocator_enable(const ptac_cpu_pool_options *options)
{
    const char *trouble = find_slots();

    if (!trouble)
        trouble = ptac_cpu_pool_open(options, install);
    if (!trouble)
        fill = options->fill;
    return trouble;
}

void ptac_cpu_allocator_disable(void)
{
    ptac_cpu_pool_shut(stop_requests, stop_frees);
}

ptac_hook_state ptac_cpu_allocator_state(void)
{
    return __atomic_load_n(&state, __ATOMIC_RELAXED);
}

bool ptac_cpu_allocator_slots(got_slots *memalign, got_slots *frees)
{
    void *c10 = ptac_torch_c10();

    return c10 && got_find(c10, "posix_memalign", memalign) &&
           got_find(c10, "free", frees);
}

bool ptac_cpu_allocator_was_overtaken(void)
{
    return was_overtaken;
}
