/*
 * ring.c - slots of shared memory that are taken in one process and given in another.
 */
#include "data/ring.h"

int64_t ptac_ring_take(uint8_t *states, int64_t first, int64_t n)
{
    for (int64_t slot = first; slot < first + n; slot++) {
        if (__atomic_load_n(&states[slot], __ATOMIC_ACQUIRE) == 0) {
            __atomic_store_n(&states[slot], 1, __ATOMIC_RELAXED);
            return slot;
        }
    }
    return -1;
}

void ptac_ring_give(uint8_t *states, int64_t slot)
{
    __atomic_store_n(&states[slot], 0, __ATOMIC_RELEASE);
}
