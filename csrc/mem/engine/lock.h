/*
 * lock.h - a lock for sections of some nanoseconds: one atomic exchange a round.
 *
 * A mutex pays for two. Here unlocking is a plain store; who comes between its look at
 * the word and the store may miss the wake-up, so waiting ends by itself after a
 * millisecond. Sections that give memory back may take that long anyway.
 *
 * errno stays as it is. A forked child may give back what was taken before the fork.
 */
#ifndef PTAC_MEM_ENGINE_LOCK_H
#define PTAC_MEM_ENGINE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ptac_lock {
    uint32_t word; /* 0: open; 1: taken; 2: taken, and somebody may wait */
} ptac_lock;

void ptac_lock_wait(ptac_lock *lock);
void ptac_lock_wake(ptac_lock *lock);

/* Not an exchange: that would wipe out the mark of those who wait. */
static inline bool ptac_lock_try(ptac_lock *lock)
{
    uint32_t open = 0;

    return __atomic_compare_exchange_n(&lock->word, &open, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static inline void ptac_lock_take(ptac_lock *lock)
{
    if (__builtin_expect(!ptac_lock_try(lock), 0))
        ptac_lock_wait(lock);
}

static inline void ptac_lock_give(ptac_lock *lock)
{
    const uint32_t before = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);

    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
    if (__builtin_expect(before == 2, 0))
        ptac_lock_wake(lock);
}

static inline ptac_lock *ptac_lock_taken(ptac_lock *lock)
{
    ptac_lock_take(lock);
    return lock;
}

static inline void ptac_lock_end(ptac_lock *const *lock)
{
    ptac_lock_give(*lock);
}

/* Holds the lock from here to the end of the block, whichever way that is left. */
#define PTAC_LOCKED(lock)                                                              \
    __attribute__((cleanup(ptac_lock_end))) ptac_lock *const lock_held =               \
        ptac_lock_taken(lock)

#endif
