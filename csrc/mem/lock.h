/*
 * lock.h - a lock for sections of some nanoseconds: one atomic exchange a round.
 *
 * A mutex pays for two. Here unlocking is a plain store; who comes between its look at
 * the word and the store may miss the wake-up, so waiting ends by itself after a
 * millisecond. Sections that give memory back may take that long anyway.
 */
#ifndef PTAC_MEM_LOCK_H
#define PTAC_MEM_LOCK_H

#include <stdint.h>

typedef struct ptac_lock {
    uint32_t word; /* 0: open; 1: taken; 2: taken, and somebody may wait */
} ptac_lock;

void ptac_lock_wait(ptac_lock *lock);
void ptac_lock_wake(ptac_lock *lock);

static inline void ptac_lock_take(ptac_lock *lock)
{
    if (__builtin_expect(__atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) != 0, 0))
        ptac_lock_wait(lock);
}

static inline void ptac_lock_give(ptac_lock *lock)
{
    const uint32_t before = __atomic_load_n(&lock->word, __ATOMIC_RELAXED);

    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
    if (__builtin_expect(before == 2, 0))
        ptac_lock_wake(lock);
}

#endif
