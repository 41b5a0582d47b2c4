/*
 * stream_events.c - blocks that other streams' work still uses.
 *
 * An event is recorded behind that work when the block is freed; the block is pending
 * until all have come. Where an event cannot be had, the block is unsure: it comes back
 * after a wait for the whole device that began later.
 */
#include "mem/cuda/stream_free_lists.h"

#include "core/debug.h"

enum {
    N_LATE = 8, /* streams seen not to be there yet: their later events need no look */
};

typedef struct late_streams {
    cu_stream streams[N_LATE];
    int n;
} late_streams;

static void drop(ptac_stream_pool *pool, ptac_stream_use **at)
{
    ptac_stream_use *use = *at;

    *at = use->next;
    use->next = pool->spare_uses;
    pool->spare_uses = use;
}

/* The next wait for the device to begin tells when nothing uses the block. */
static void be_unsure(ptac_stream_pool *pool, ptac_block *block)
{
    block->flags |= PTAC_BLOCK_UNSURE;
    block->requested = (size_t)pool->waits_begun;
}

void ptac_stream_events_add(ptac_stream_pool *pool, ptac_block *block, cu_stream stream)
{
    ptac_stream_use *use;

    for (use = block->uses; use; use = use->next)
        if (use->stream == stream)
            return;
    use = pool->spare_uses;
    if (use)
        pool->spare_uses = use->next;
    else /* which is zeroed, and not from the heap */
        use = (ptac_stream_use *)ptac_record_take(&pool->pool.records);
    if (!use) {
        block->flags |= PTAC_BLOCK_UNSURE;
        return;
    }
    use->stream = stream;
    use->is_recorded = false;
    use->next = block->uses;
    block->uses = use;
}

/* Records what has not been; uses where that fails make the block unsure. */
static void record_uses(ptac_stream_pool *pool, ptac_block *block)
{
    for (ptac_stream_use **at = &block->uses; *at;) {
        ptac_stream_use *use = *at;

        if (!use->is_recorded)
            use->is_recorded = ptac_stream_event_record(pool, &use->event, use->stream);
        if (use->is_recorded) {
            at = &use->next;
        } else {
            be_unsure(pool, block);
            drop(pool, at);
        }
    }
}

void ptac_stream_events_end(ptac_stream_pool *pool, ptac_block *block)
{
    ptac_free_lists *lists = ptac_free_lists_of(pool, block);

    if (block->stream == (uintptr_t)lists->stream)
        ptac_free_lists_note(pool, lists, pool->pool.arenas[block->arena]->is_small);
    if (block->flags & PTAC_BLOCK_UNSURE)
        be_unsure(pool, block);
    if (pool->capturing < 0)
        record_uses(pool, block);
    block->previous = NULL;
    *pool->pending_end = block;
    pool->pending_end = &block->previous;
}

static bool is_late(const late_streams *late, cu_stream stream)
{
    for (int i = 0; i < late->n; i++)
        if (late->streams[i] == stream)
            return true;
    return false;
}

static bool has_ended(ptac_stream_pool *pool, ptac_block *block, late_streams *late)
{
    record_uses(pool, block);
    for (ptac_stream_use **at = &block->uses; *at;) {
        const cu_stream stream = (*at)->stream;
        cu_result result;

        if (is_late(late, stream))
            return false;
        result = ptac_cuda.event_query((*at)->event);
        if (result == PTAC_CU_NOT_READY) {
            if (late->n < N_LATE)
                late->streams[late->n++] = stream;
            return false;
        }
        if (result != PTAC_CU_OK)
            be_unsure(pool, block);
        drop(pool, at);
    }
    return !(block->flags & PTAC_BLOCK_UNSURE) ||
           (int64_t)block->requested < pool->waited_for;
}

/* The pending block at this link becomes free. */
static void complete(ptac_stream_pool *pool, ptac_block **at)
{
    ptac_block *block = *at;

    *at = block->previous;
    if (!*at)
        pool->pending_end = at;
    block->flags &= ~(uint32_t)PTAC_BLOCK_UNSURE;
    ptac_history_note(&pool->pool.history, PTAC_EVENT_FREE_COMPLETED, block->address,
                      block->bytes, (uintptr_t)ptac_free_lists_of(pool, block)->stream);
    ptac_pool_give(&pool->pool, block);
}

/* Pending blocks are in use, belong to lists, and end where the next is put. */
static void check_pending(ptac_stream_pool *pool)
{
#ifdef PTAC_DEBUG
    ptac_block **at = &pool->pending;

    for (; *at; at = &(*at)->previous) {
        PTAC_ASSERT(!((*at)->flags & PTAC_BLOCK_FREE));
        PTAC_ASSERT(ptac_table_find(&pool->pool.used, (*at)->address) != *at);
        PTAC_ASSERT(pool->lists_of[(*at)->arena] < pool->n_streams);
    }
    PTAC_ASSERT(at == pool->pending_end);
#endif
}

void ptac_stream_events_process(ptac_stream_pool *pool)
{
    late_streams late = {.n = 0};

    if (!pool->pending || pool->capturing >= 0)
        return;
    check_pending(pool);
    for (ptac_block **at = &pool->pending; *at;) {
        if (has_ended(pool, *at, &late))
            complete(pool, at);
        else
            at = &(*at)->previous;
    }
}

static bool wait_for_uses(ptac_stream_pool *pool, ptac_block *block, cu_stream stream)
{
    for (ptac_stream_use *use = block->uses; use; use = use->next)
        if (!use->is_recorded || !ptac_stream_event_wait(pool, use->event, stream))
            return false;
    return true;
}

bool ptac_stream_events_wait(ptac_stream_pool *pool, ptac_free_lists *lists,
                             size_t bytes)
{
    for (ptac_block **at = &pool->pending; *at; at = &(*at)->previous) {
        ptac_block *block = *at;

        if (ptac_free_lists_of(pool, block) != lists || block->bytes < bytes ||
            pool->pool.arenas[block->arena]->is_small != ptac_is_small(bytes) ||
            block->flags & PTAC_BLOCK_UNSURE ||
            !wait_for_uses(pool, block, lists->stream))
            continue;
        while (block->uses)
            drop(pool, &block->uses);
        complete(pool, at);
        ptac_free_lists_note(pool, lists,
                             ptac_is_small(bytes)); /* the waits are in its order */
        return true;
    }
    return false;
}
