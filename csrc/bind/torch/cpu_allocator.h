/*
 * cpu_allocator.h - torch's CPU storages from our pool, by way of libc10's imports.
 */
#ifndef PTAC_BIND_TORCH_CPU_ALLOCATOR_H
#define PTAC_BIND_TORCH_CPU_ALLOCATOR_H

#include "bind/abi/got.h"
#include "mem/cpu_pool.h"

typedef enum ptac_hook_state {
    PTAC_HOOK_OFF = 0,
    PTAC_HOOK_ON,
    PTAC_HOOK_DRAINING, /* requests go to libc again, blocks of ours still come back */
} ptac_hook_state;

/*
 * From now on libc10's requests for memory of 64 KiB and more are served by the pool.
 * NULL, or why that cannot be. Options of a pool that is on are changed.
 */
const char *ptac_cpu_allocator_enable(const ptac_cpu_pool_options *options);

/*
 * Requests go to libc at once. Frees pass through us until the last block is back; then
 * nothing of ours is left in libc10.
 */
void ptac_cpu_allocator_disable(void);

ptac_hook_state ptac_cpu_allocator_state(void);

/*
 * What libc10's slots of posix_memalign and free hold now; false where there are none.
 * For tests and the curious.
 */
bool ptac_cpu_allocator_slots(got_slots *memalign, got_slots *frees);

/* Whether a slot that we wrote was changed by others and has been left to them. */
bool ptac_cpu_allocator_was_overtaken(void);

#endif
