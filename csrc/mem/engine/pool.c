/*
 * pool.c - blocks in and out, counted.
 */
#include "mem/engine/pool.h"

#include <sys/mman.h>

ptac_arena *ptac_pool_add_arena(ptac_pool *pool, const ptac_arena *like, size_t bytes)
{
    ptac_arena *arena =
        pool->n_arenas < PTAC_MAX_ARENAS ? ptac_pages_take(sizeof *arena) : NULL;

    if (!arena)
        return NULL;
    *arena = *like;
    arena->records = &pool->records;
    arena->budget = &pool->budget;
    arena->number = (uint32_t)pool->n_arenas;
    if (!ptac_arena_open(arena, bytes)) {
        munmap(arena, sizeof *arena);
        return NULL;
    }
    pool->arenas[pool->n_arenas++] = arena;
    return arena;
}

static void add_arena(ptac_mem_stats *s, const ptac_arena *arena)
{
    const ptac_stat one = {.current = arena->base != 0, .peak = 1, .allocated = 1};
    const int classes[] = {PTAC_ALL, arena->is_small ? PTAC_SMALL : PTAC_LARGE};

    for (int i = 0; i < 2; i++) {
        const int c = classes[i];

        ptac_stat_merge(&s->segment[c], &one);
        ptac_stat_merge(&s->inactive_split[c], &arena->n_free);
        ptac_stat_merge(&s->inactive_split_bytes[c], &arena->free_bytes);
        ptac_stat_merge(&s->reserved_bytes[c], &arena->held);
    }
    ptac_stat_merge(&s->arena_bytes, &arena->extent);
    s->num_device_alloc += arena->source->n_created;
    s->num_device_free += arena->source->n_released;
}

void ptac_pool_close(ptac_pool *pool)
{
    ptac_pool_settle(pool);
    while (pool->n_arenas > 0) {
        ptac_arena *arena = pool->arenas[--pool->n_arenas];

        ptac_arena_close(arena);
        add_arena(&pool->stats, arena);
        munmap(arena, sizeof *arena);
    }
    ptac_table_close(&pool->used);
    ptac_records_close(&pool->records);
    ptac_history_close(&pool->history);
}

static int class_of(const ptac_block *block)
{
    return block->flags & PTAC_BLOCK_SMALL ? PTAC_SMALL : PTAC_LARGE;
}

bool ptac_pool_enter(ptac_pool *pool, ptac_block *block, size_t bytes)
{
    ptac_mem_stats *s = &pool->stats;

    if (!ptac_table_prepare(&pool->used))
        return false;
    block->requested = bytes;
    block->step = block->n = 0; /* a policy's pointers until now */
    if (bytes <= PTAC_SMALL_BYTES)
        block->flags |= PTAC_BLOCK_SMALL;
    ptac_table_put(&pool->used, block);
    ptac_class_add(s->allocation, class_of(block), 1);
    ptac_class_add(s->allocated_bytes, class_of(block), (int64_t)block->bytes);
    ptac_class_add(s->requested_bytes, class_of(block), (int64_t)bytes);
    if (pool->has_streams) {
        ptac_class_add(s->active, class_of(block), 1);
        ptac_class_add(s->active_bytes, class_of(block), (int64_t)block->bytes);
    }
    return true;
}

void ptac_pool_settle(ptac_pool *pool)
{
    ptac_block *block = pool->spare;

    pool->spare = NULL;
    if (block)
        ptac_arena_free(pool->arenas[block->arena], block);
}

/*
 * Whether the arena, had it the spare back, would cut the request from its place: it is
 * at the top or would merge with none, and the policy finds no other block. Merged with
 * a free neighbour above it has another size, for which a policy might pass it over;
 * one that takes the lowest would not, if that neighbour is what it takes now. (Where
 * very many blocks are free, exact_fit may not come to see the merged one; a place of
 * just the size asked for, and lower, is no worse.)
 */
static bool would_do(const ptac_block *spare, const ptac_arena *arena, size_t bytes)
{
    const ptac_block *above, *found;

    if (!spare || spare->arena != arena->number || bytes > spare->bytes ||
        spare->bytes - bytes >= arena->granule ||
        (spare->below && spare->below->flags & PTAC_BLOCK_FREE))
        return false;
    found = arena->policy->find(arena->index, spare->bytes);
    above = spare->above;
    if (!above)
        return !found;
    if (!arena->policy->takes_lowest && above->flags & PTAC_BLOCK_LISTED)
        return false;
    return !found || (found == above && found->bytes > spare->bytes);
}

ptac_block *ptac_pool_take(ptac_pool *pool, ptac_arena *arena, size_t bytes)
{
    ptac_block *block = pool->spare;

    if (would_do(block, arena, bytes)) {
        pool->spare = NULL;
        ptac_arena_note_visit(arena, block);
    } else {
        ptac_pool_settle(pool);
        block = ptac_arena_alloc(arena, bytes);
    }
    if (block && !ptac_pool_enter(pool, block, bytes)) {
        ptac_arena_free(arena, block);
        block = NULL;
    }
    return block;
}

ptac_block *ptac_pool_part(ptac_pool *pool, uintptr_t address)
{
    ptac_block *block = ptac_table_take(&pool->used, address);
    ptac_mem_stats *s = &pool->stats;

    if (block) {
        ptac_stat_sub(&s->allocation[class_of(block)], 1);
        ptac_stat_sub(&s->allocated_bytes[class_of(block)], (int64_t)block->bytes);
        ptac_stat_sub(&s->requested_bytes[class_of(block)], (int64_t)block->requested);
    }
    return block;
}

void ptac_pool_leave(ptac_pool *pool, const ptac_block *block)
{
    if (pool->has_streams) {
        ptac_stat_sub(&pool->stats.active[class_of(block)], 1);
        ptac_stat_sub(&pool->stats.active_bytes[class_of(block)],
                      (int64_t)block->bytes);
    }
}

void ptac_pool_give(ptac_pool *pool, ptac_block *block)
{
    ptac_pool_leave(pool, block);
    if (pool->keeps_spare) {
        ptac_pool_settle(pool);
        block->flags = 0;
        pool->spare = block;
    } else {
        ptac_arena_free(pool->arenas[block->arena], block);
    }
}

size_t ptac_pool_trim(ptac_pool *pool)
{
    size_t released = 0;

    ptac_pool_settle(pool);
    ptac_pool_check(pool);
    for (int i = 0; i < pool->n_arenas; i++)
        released += ptac_arena_trim(pool->arenas[i]);
    pool->stats.purged_bytes += (int64_t)released;
    return released;
}

static void sum_classes(ptac_mem_stats *stats)
{
#define X(name) ptac_class_sum(stats->name);
    PTAC_CLASS_STATS(X)
#undef X
}

void ptac_pool_stats(ptac_pool *pool, ptac_mem_stats *stats)
{
    PTAC_LOCKED(&pool->lock);
    ptac_pool_settle(pool);
    ptac_pool_check(pool);
    *stats = pool->stats;
    sum_classes(stats);
    for (int i = 0; i < pool->n_arenas; i++)
        add_arena(stats, pool->arenas[i]);
    stats->reserved_bytes[PTAC_ALL] = pool->budget.held;
    for (int c = PTAC_ALL; c < PTAC_N_CLASSES && !pool->has_streams; c++) {
        stats->active[c] = stats->allocation[c];
        stats->active_bytes[c] = stats->allocated_bytes[c];
    }
}

static void reset(ptac_stat *stat)
{
    stat->peak = stat->current;
}

void ptac_pool_reset_peaks(ptac_pool *pool)
{
    PTAC_LOCKED(&pool->lock);
    ptac_pool_settle(pool);
    sum_classes(&pool->stats);
    for (int c = PTAC_ALL; c < PTAC_N_CLASSES; c++) {
#define X(name) reset(&pool->stats.name[c]);
        PTAC_CLASS_STATS(X)
#undef X
    }
    for (int i = 0; i < pool->n_arenas; i++) {
        reset(&pool->arenas[i]->held);
        reset(&pool->arenas[i]->extent);
        reset(&pool->arenas[i]->n_free);
        reset(&pool->arenas[i]->free_bytes);
    }
    reset(&pool->budget.held);
    reset(&pool->stats.arena_bytes); /* of a pool that has closed */
}
