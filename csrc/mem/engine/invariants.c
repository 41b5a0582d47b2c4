/*
 * invariants.c - what must hold of a pool, walked at its slow paths in debug builds.
 */
#include "mem/engine/pool.h"

#ifdef PTAC_DEBUG
#include "core/debug.h"
#include "mem/engine/size_classes.h"

#include <string.h>

static bool is_held(const ptac_arena *arena, uintptr_t from, uintptr_t to)
{
    const size_t chunk = arena->source->chunk_bytes;
    const size_t first = (from - arena->base) / chunk;

    return !memchr(&arena->is_held[first], 0,
                   (to - 1 - arena->base) / chunk - first + 1);
}

static void check_lists(const ptac_size_classes *lists, size_t n_listed)
{
    size_t n = 0;

    for (int class = 0; class < PTAC_N_SIZE_CLASSES; class ++) {
        const ptac_block *previous = NULL;

        for (const ptac_block *b = lists->heads[class]; b; previous = b, b = b->next) {
            PTAC_ASSERT(b->flags & PTAC_BLOCK_LISTED && b->previous == previous);
            PTAC_ASSERT(ptac_size_class(b->bytes) == class && ++n <= n_listed);
        }
    }
    PTAC_ASSERT(n == n_listed);
}

/* Blocks follow one another from base to top; free ones are listed, used ones held. */
static void check_arena(const ptac_arena *arena)
{
    const ptac_block *above = NULL;
    uintptr_t end = arena->top;
    size_t n_free = 0, n_listed = 0, free_bytes = 0;

    for (const ptac_block *b = arena->last; b; above = b, b = b->below) {
        const bool is_free = b->flags & PTAC_BLOCK_FREE;
        const bool is_listed = is_free && b->bytes >= arena->least_bytes;

        PTAC_ASSERT(b->address + b->bytes == end && b->above == above);
        PTAC_ASSERT(b->bytes > 0 && b->bytes % arena->granule == 0);
        PTAC_ASSERT(b->arena == arena->number && !(b->flags & PTAC_BLOCK_PLANNED));
        PTAC_ASSERT(!is_free || (above && !(above->flags & PTAC_BLOCK_FREE)));
        PTAC_ASSERT(is_listed == !!(b->flags & PTAC_BLOCK_LISTED));
        PTAC_ASSERT((is_free && b->flags & PTAC_BLOCK_HOLED) ||
                    is_held(arena, b->address, end));
        n_free += is_free;
        n_listed += is_listed;
        free_bytes += is_free ? b->bytes : 0;
        end = b->address;
    }
    PTAC_ASSERT(end == arena->base && arena->top <= arena->high);
    PTAC_ASSERT(n_free == (size_t)arena->n_free.current);
    PTAC_ASSERT(free_bytes == (size_t)arena->free_bytes.current);
    if (arena->policy->add == ptac_size_classes_add)
        check_lists(arena->index, n_listed);
}

/* A used block of the first arena that no table knows, and that is not the spare. */
static const ptac_block *find_region(const ptac_pool *pool)
{
    const ptac_block *b = pool->n_arenas ? pool->arenas[0]->last : NULL;

    while (b && (b->flags & PTAC_BLOCK_FREE || b == pool->spare ||
                 ptac_table_find(&pool->used, b->address) == b))
        b = b->below;
    return b;
}

void ptac_pool_check(const ptac_pool *pool)
{
    const ptac_block *region = find_region(pool);
    size_t n = 0;
    int64_t held = 0;

    for (int i = 0; i < pool->n_arenas; i++) {
        check_arena(pool->arenas[i]);
        held += pool->arenas[i]->held.current;
    }
    PTAC_ASSERT(held == pool->budget.held.current || !pool->n_arenas);
    for (size_t i = 0; i < pool->used.n_slots; i++) {
        const ptac_block *b = pool->used.slots[i];

        if (!b)
            continue;
        n++;
        PTAC_ASSERT(!(b->flags & PTAC_BLOCK_FREE));
        PTAC_ASSERT(ptac_table_find(&pool->used, b->address) == b);
        PTAC_ASSERT(!(b->flags & PTAC_BLOCK_PLANNED) ||
                    (region && b->address >= region->address &&
                     b->address + b->bytes <= region->address + region->bytes));
    }
    PTAC_ASSERT(n == pool->used.n_blocks);
}
#else
void ptac_pool_check(const ptac_pool *pool)
{
}
#endif
