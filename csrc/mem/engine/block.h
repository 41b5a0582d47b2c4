/*
 * block.h - one piece of an arena, and the table that finds it by its address.
 *
 * Words used in this room:
 *   chunk     what a source commits and releases at a time
 *   arena     one reserved range of addresses, cut into blocks
 *   block     a piece of an arena, used or free; neighbours are never both free
 *   top       the end of the last used block; above it the arena is untouched or folded
 *             back, and belongs to no block
 *   high      the highest top since memory was last given back
 *   held      bytes of chunks that have, or may have, memory behind them
 *
 * Records lie outside the memory they describe (which may be another device's, or cold)
 * in slabs that never move, so a pointer to a record stays good while it is in use.
 */
#ifndef PTAC_MEM_ENGINE_BLOCK_H
#define PTAC_MEM_ENGINE_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PTAC_BLOCK_FREE = 1,     /* nobody's */
    PTAC_BLOCK_LISTED = 2,   /* free, and in the policy's index */
    PTAC_BLOCK_HOLED = 4,    /* free, and some of its chunks have been released */
    PTAC_BLOCK_SMALL = 8,    /* used, and counted in the small pool */
    PTAC_BLOCK_PLANNED = 16, /* used, and a part of a plan's region, not of the arena */
    PTAC_BLOCK_UNSURE = 32,  /* freed by its user, and any work may still use it */
};

/* The next multiple of unit, a power of two. */
static inline uintptr_t ptac_round_up(uintptr_t n, size_t unit)
{
    return (n + unit - 1) & ~(uintptr_t)(unit - 1);
}

/*
 * Zeroed memory of whole pages, for munmap() to take back, or NULL. Not from the heap:
 * torch may just be taken away from that, and the caller may have locked it.
 */
void *ptac_pages_take(size_t bytes);

typedef struct ptac_block {
    uintptr_t address;
    size_t bytes;
    size_t requested;                 /* by the user; a policy's own while listed */
    struct ptac_block *below, *above; /* neighbours by address, or NULL */
    union {
        struct {
            struct ptac_block *previous, *next; /* a policy's own while listed */
        };
        struct {
            uint32_t step, n; /* of a used one: when a plan's step asked for it */
        };
        struct {
            uintptr_t stream; /* of a used one, in pools with streams: its own */
            struct ptac_stream_use *uses; /* and other streams' work on it */
        };
    };
    uint32_t flags;
    uint32_t arena; /* its number in the pool */
} ptac_block;

_Static_assert(sizeof(ptac_block) <= 64, "a record is one cache line");

/* Records, all taken from and given back to this; zeroed memory is an empty one. */
typedef struct ptac_records {
    ptac_block *free; /* linked by next */
    struct ptac_slab *slabs;
} ptac_records;

bool ptac_records_add(ptac_records *records);
/* So many can be taken for certain; false without memory for them. */
bool ptac_records_prepare(ptac_records *records, size_t n);

/* A zeroed record, or NULL when there is no memory for one. */
static inline ptac_block *ptac_record_take(ptac_records *records)
{
    ptac_block *block = records->free;

    if (__builtin_expect(!block, 0)) {
        if (!ptac_records_add(records))
            return NULL;
        block = records->free;
    }
    records->free = block->next;
    *block = (ptac_block){0};
    return block;
}

static inline void ptac_record_give(ptac_records *records, ptac_block *block)
{
    block->next = records->free;
    records->free = block;
}

/* Every record is gone. */
void ptac_records_close(ptac_records *records);

/*
 * Used blocks by address: open addressing, linear probing, at most half full. Zeroed
 * memory is an empty table.
 */
typedef struct ptac_block_table {
    ptac_block **slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_blocks;
} ptac_block_table;

bool ptac_table_grow(ptac_block_table *table);

/* Make room for one more; false when there is no memory for that. */
static inline bool ptac_table_prepare(ptac_block_table *table)
{
    return 2 * (table->n_blocks + 1) <= table->n_slots || ptac_table_grow(table);
}

/* Room has been made. */
void ptac_table_put(ptac_block_table *table, ptac_block *block);
/* The block that starts at this address, or NULL. */
ptac_block *ptac_table_find(const ptac_block_table *table, uintptr_t address);
/* The same, and it is taken out. */
ptac_block *ptac_table_take(ptac_block_table *table, uintptr_t address);
void ptac_table_close(ptac_block_table *table);

#endif
