/*
 * pool.h - a device's memory pool: arenas behind one lock, with a cap and statistics.
 */
#ifndef PTAC_MEM_ENGINE_POOL_H
#define PTAC_MEM_ENGINE_POOL_H

#include "mem/engine/arena.h"
#include "mem/engine/history.h"
#include "mem/engine/lock.h"
#include "mem/engine/stats.h"

enum {
    PTAC_MAX_ARENAS = 256,
};

/* Zeroed memory is a pool without arenas. */
typedef struct ptac_pool {
    ptac_lock lock;
    ptac_records records;
    ptac_block_table used;
    ptac_budget budget;
    ptac_mem_stats stats;
    ptac_history history;
    ptac_arena *arenas[PTAC_MAX_ARENAS];
    int n_arenas;
    bool has_streams; /* blocks may be active after they have been freed */
    bool keeps_spare;
    ptac_block *spare; /* freed last, not merged yet: the next request is often alike */
} ptac_pool;

/*
 * A new arena of so many bytes of addresses, or NULL. Lives until the pool is closed.
 * Source, policy, granule, least_bytes, is_small and stream are as in `like`. This and
 * what follows is called with the lock held, except where it says otherwise.
 */
ptac_arena *ptac_pool_add_arena(ptac_pool *pool, const ptac_arena *like, size_t bytes);

/* Every arena goes, and the history; no block is used. Statistics stay to be read. */
void ptac_pool_close(ptac_pool *pool);

/* A block of this arena, in the table and in the statistics, or NULL. bytes > 0. */
ptac_block *ptac_pool_take(ptac_pool *pool, ptac_arena *arena, size_t bytes);
/*
 * The two parts of that for a block that somebody else has cut: into the table and the
 * statistics, false without memory for the table; and out of what is active.
 */
bool ptac_pool_enter(ptac_pool *pool, ptac_block *block, size_t bytes);
void ptac_pool_leave(ptac_pool *pool, const ptac_block *block);
/* The used block at this address, no longer in the table, or NULL. It stays active. */
ptac_block *ptac_pool_part(ptac_pool *pool, uintptr_t address);
/* A block that was parted goes back to its arena, at once or as the pool's spare. */
void ptac_pool_give(ptac_pool *pool, ptac_block *block);

/* The spare goes back to its arena, as it does before anybody looks at that. */
void ptac_pool_settle(ptac_pool *pool);

/* In debug builds: ends the process where the pool's structure is not sound. */
void ptac_pool_check(const ptac_pool *pool);

/* Gives back what no used block touches, of all arenas; bytes. */
size_t ptac_pool_trim(ptac_pool *pool);

/* Takes the lock: a copy of the statistics; peaks become what is current. */
void ptac_pool_stats(ptac_pool *pool, ptac_mem_stats *stats);
void ptac_pool_reset_peaks(ptac_pool *pool);

#endif
