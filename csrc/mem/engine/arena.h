/*
 * arena.h - one range of addresses, cut into blocks: split, coalesce, grow, give back.
 *
 * A request takes the free block that the policy finds and leaves the rest of it; else
 * the arena grows at its top. A freed block merges with free neighbours at once, and a
 * free block at the top folds back into the untouched part. Knows no lock and no
 * device. block.h has the words.
 */
#ifndef PTAC_MEM_ENGINE_ARENA_H
#define PTAC_MEM_ENGINE_ARENA_H

#include "mem/engine/block.h"
#include "mem/engine/policy.h"
#include "mem/engine/source.h"
#include "mem/engine/stats.h"

/* What all arenas of a pool may hold together. */
typedef struct ptac_budget {
    size_t cap;
    ptac_stat held;
} ptac_budget;

static inline bool ptac_budget_allows(const ptac_budget *budget, size_t bytes)
{
    const size_t held = (size_t)budget->held.current;

    return held <= budget->cap && bytes <= budget->cap - held;
}

typedef struct ptac_arena {
    ptac_source *source;
    const ptac_policy *policy;
    ptac_records *records;
    ptac_budget *budget;
    uint32_t number;
    bool is_small;      /* for blocks of the small pool alone */
    uintptr_t stream;   /* whose requests it serves, in pools with streams */
    size_t granule;     /* sizes are multiples of it; a power of two */
    size_t least_bytes; /* smaller free blocks wait for a neighbour, unlisted */

    uintptr_t base, end;
    uintptr_t top, high;
    uintptr_t held_end;                         /* no chunk at or above it is held */
    ptac_block *last;                           /* the used block that ends at top */
    ptac_stat held, extent, n_free, free_bytes; /* extent: from base to top */

    void *index;      /* the policy's */
    uint8_t *is_held; /* a byte a chunk */
    uint32_t *visits; /* what the n-th region got more visits than the one before it */
    uint8_t *heat;    /* a byte a region: cold, huge or cooled */
    size_t tables_bytes;
    size_t n_hot_runs; /* of huge regions beside one another */
} ptac_arena;

enum {
    PTAC_REGION_BYTES = 2 << 20, /* a huge page */
    PTAC_HOT_VISITS = 50,        /* from here on a region is worth one */
    PTAC_MOST_HOT_RUNS = 1000,   /* each is a mapping, of which there may be 65,530 */
};

enum {
    PTAC_REGION_COLD = 0,
    PTAC_REGION_HUGE,   /* huge pages have been asked for, and every chunk is held */
    PTAC_REGION_COOLED, /* no more, and what made it hot is to be forgotten */
};

/*
 * Reserves bytes, a multiple of the source's chunk. False when there are no such
 * addresses or no memory for the tables; nothing is left behind then.
 */
bool ptac_arena_open(ptac_arena *arena, size_t bytes);
/* No block is used. */
void ptac_arena_close(ptac_arena *arena);

/*
 * A used block of at least bytes, at a multiple of the granule; NULL when there is no
 * room, no memory, no record, or the budget does not allow it. bytes > 0.
 */
ptac_block *ptac_arena_alloc(ptac_arena *arena, size_t bytes);
void ptac_arena_free(ptac_arena *arena, ptac_block *block);

/*
 * A used block falls apart: n > 0 records of planned blocks that lie within it, in the
 * order of their addresses, become used blocks of the arena, and what is between them
 * becomes free. False, and nothing is done, without records for that.
 */
bool ptac_arena_dissolve(ptac_arena *arena, ptac_block *whole, void *const *parts,
                         size_t n);

/* A part of a used block is about to be used: counts for huge pages as a request. */
void ptac_arena_note_visit(ptac_arena *arena, const ptac_block *part);

/* Whether there are addresses for it, so that all it may lack is memory. */
bool ptac_arena_has_room(const ptac_arena *arena, size_t bytes);

/*
 * Has every chunk that [from, to) touches held; false if one cannot be. Those before it
 * stay held then, until memory is given back: a request that fails tries that next.
 */
bool ptac_arena_hold(ptac_arena *arena, uintptr_t from, uintptr_t to);

/* Gives back every whole chunk that no used block touches; the bytes. */
size_t ptac_arena_trim(ptac_arena *arena);

/* Places by this policy from now on. */
void ptac_arena_use_policy(ptac_arena *arena, const ptac_policy *policy);

/* Asks for huge pages behind regions that have become hot; the bytes asked for. */
size_t ptac_arena_promote(ptac_arena *arena);

/* Has memory behind the first bytes above the top, which then are held. */
bool ptac_arena_populate(ptac_arena *arena, size_t bytes);

#endif
