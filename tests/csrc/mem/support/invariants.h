/*
 * invariants.h - looks at every block, table and list of a pool, and says what is not
 * as csrc/mem promises.
 */
#ifndef PTAC_TESTS_MEMORY_WALK_H
#define PTAC_TESTS_MEMORY_WALK_H

#include "mem/engine/pool.h"

/* NULL when all is as it should be; else what is not. Called with the lock held. */
const char *walk_pool(const ptac_pool *pool);

/* Bytes of the largest listed free block of this arena; 0 without one. */
size_t walk_largest(const ptac_arena *arena);

#endif
