/*
 * arena.h - buffers that notice who touches what is not theirs.
 *
 * A slot is a stretch of memory between two pages that nobody may touch. A buffer lies
 * in it at the very end or beginning, where one byte too far is a fault, or somewhere
 * between, at an odd alignment. Where there is room, guard bytes lie before and behind.
 * Built with AddressSanitizer, that room is poisoned as well.
 */
#ifndef PTAC_TESTS_ARENA_H
#define PTAC_TESTS_ARENA_H

#include "random.h"

enum {
    ARENA_SLOTS = 24,
    ARENA_SLOT_BYTES = 4 << 20,
};

/* Once before anything else; doing it again changes nothing. */
void arena_prepare(void);

/*
 * Lay a buffer of so many bytes into the slot, aligned to element_bytes and, by the
 * random numbers, to nothing more; without them, to a page. Its bytes are left as they
 * are.
 */
void *arena_place(rng *r, int slot, size_t bytes, size_t element_bytes);

/*
 * Nobody may touch any slot from now on; or only what surrounds them again. Whether
 * that was so before.
 */
bool arena_forbid(bool all);

/* What was written around the slot's buffer, or NULL when nothing was. */
const char *arena_damage(int slot);

/*
 * Which buffer an address that faulted lies beside: the slot and the signed distance
 * in bytes from its beginning (negative) or end. False when it is none of ours.
 */
bool arena_locate(const void *address, int *slot, int64_t *distance);

#endif
