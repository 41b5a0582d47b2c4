/*
 * cpu_pool.h - the pool that torch's CPU storages come from.
 *
 * One a process. Everything may be called from any thread, in a forked child too, but
 * not from a signal handler.
 */
#ifndef PTAC_MEM_CPU_CPU_POOL_H
#define PTAC_MEM_CPU_CPU_POOL_H

#include "mem/engine/pool.h"

enum {
    PTAC_CPU_LEAST_BYTES = 64 << 10, /* smaller storages stay with libc */
};

typedef enum ptac_cpu_state {
    PTAC_CPU_OFF,
    PTAC_CPU_ON,
    PTAC_CPU_DRAINING, /* requests go elsewhere again, blocks of ours still come back */
} ptac_cpu_state;

typedef enum ptac_fill {
    PTAC_FILL_NONE = 0,
    PTAC_FILL_ZERO,
    PTAC_FILL_JUNK, /* 0xCD, as a float -4.3e8, as an index far out of range */
} ptac_fill;

typedef struct ptac_cpu_pool_options {
    const ptac_policy *policy;
    size_t cap;           /* most bytes to hold, in whole chunks; SIZE_MAX: no limit */
    size_t reserve_bytes; /* brought into memory now, from the top of the arena on */
    size_t n_history;     /* events to remember */
    int64_t idle_s;       /* without request or free, to give memory back; -1: never */
    ptac_fill fill;       /* the caller's to do; kept here for both */
} ptac_cpu_pool_options;

/*
 * Opens the pool, or takes other options where it is open. install() is called with the
 * lock held when the pool comes on. NULL, or what stands in the way: then all is as
 * before, but for memory that was reserved.
 */
const char *ptac_cpu_pool_open(const ptac_cpu_pool_options *options,
                               bool (*install)(ptac_cpu_state before));

/*
 * No block is handed out from now on. remove() is called with the lock held, at once;
 * drained() likewise, when the last block has come back, which may be now.
 */
void ptac_cpu_pool_shut(void (*remove)(void), void (*drained)(void));

/* And how many blocks are in use. */
ptac_cpu_state ptac_cpu_pool_state(int64_t *n_blocks);

/*
 * A block of at least bytes at a multiple of 64 bytes, or NULL. is_refused tells that
 * the cap says no, so that nobody else should be asked.
 */
void *ptac_cpu_pool_alloc(size_t bytes, bool *is_refused);
/* The request failed for good: torch's error comes. */
void ptac_cpu_pool_note_oom(size_t bytes);
/* False, and nothing done, when no block in use begins there. */
bool ptac_cpu_pool_free(void *memory);

/*
 * Whether steps that repeat are planned (step_plan.h), and that a step of training ends
 * here. Both may come at any time, also while the pool is closed.
 */
void ptac_cpu_pool_plan_steps(bool is_wanted);
void ptac_cpu_pool_end_step(void);

/* Memory that no block uses goes back to the system; bytes. */
size_t ptac_cpu_pool_trim(void);

/* For statistics and snapshots; its lock is to be taken. */
ptac_pool *ptac_cpu_pool(void);

/*
 * The arena's addresses, base and bytes in regions, 0 while the pool is closed. In one
 * word, so that a reader never takes the base of one arena for that of the next.
 */
extern uint64_t ptac_cpu_range;

enum {
    PTAC_RANGE_SIZE_BITS = 28,
};

static inline bool ptac_cpu_pool_owns(const void *memory)
{
    const uint64_t range = __atomic_load_n(&ptac_cpu_range, __ATOMIC_RELAXED);
    const uint64_t size = range & ((UINT64_C(1) << PTAC_RANGE_SIZE_BITS) - 1);
    const uint64_t first = range >> PTAC_RANGE_SIZE_BITS;

    return (uintptr_t)memory / PTAC_REGION_BYTES - first < size;
}

#endif
