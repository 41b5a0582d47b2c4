/*
 * stream_pool.c - requests, frees, and what is tried when there is no memory.
 */
#include "mem/cuda/stream_free_lists.h"

enum {
    SMALL_CHUNK = 2 << 20,
    LARGE_CHUNK = 16 << 20,
};

const char *ptac_stream_pool_open(ptac_stream_pool *pool, int device,
                                  const ptac_stream_pool_options *options)
{
    const char *trouble = ptac_cuda_device_open(&pool->device, device);

    if (trouble)
        return trouble;
    pool->options = *options;
    if (!options->small_chunk)
        pool->options.small_chunk = SMALL_CHUNK;
    if (!options->large_chunk)
        pool->options.large_chunk = LARGE_CHUNK;
    if (pool->options.small_chunk % pool->device.granularity ||
        pool->options.large_chunk % pool->device.granularity)
        return "the device maps memory in larger pieces than ours";
    if (!ptac_history_open(&pool->pool.history, options->n_history))
        return "no memory for the history";
    pool->pool.has_streams = true;
    pool->pending_end = &pool->pending;
    pool->capturing = -1;
    return NULL;
}

/*
 * Everything queued so far ends. Without the lock: work on the host that a stream waits
 * for may want it. What was freed before the wait began is quiet afterwards.
 */
static void wait_for_device(ptac_stream_pool *pool)
{
    const int64_t number = ++pool->waits_begun;
    cu_result result;

    pool->pool.stats.num_sync_all_streams++;
    ptac_lock_give(&pool->pool.lock);
    result = PTAC_CUDA_WITHIN(&pool->device, ptac_cuda.context_synchronize());
    ptac_lock_take(&pool->pool.lock);
    if (result == PTAC_CU_OK && number > pool->waited_for)
        pool->waited_for = number;
    ptac_stream_events_process(pool);
}

size_t ptac_stream_pool_trim(ptac_stream_pool *pool)
{
    PTAC_LOCKED(&pool->pool.lock);
    if (pool->capturing >= 0 || pool->is_child)
        return 0;
    wait_for_device(pool);
    return pool->capturing < 0 ? ptac_free_lists_trim(pool) : 0;
}

/* The slot of the graph that this stream is being captured for; -1: it is not. */
static int graph_of(ptac_stream_pool *pool, cu_stream stream)
{
    cu_capture_status status = 0;

    if (pool->capturing < 0)
        return -1;
    return ptac_cuda.stream_is_capturing(stream, &status) == PTAC_CU_OK && status != 0
               ? pool->capturing
               : -1;
}

/* A free block of another stream's lists, behind a wait where that has work. */
static ptac_block *steal(ptac_stream_pool *pool, size_t bytes, cu_stream stream,
                         const ptac_free_lists *own, bool may_wait)
{
    const bool is_small = ptac_is_small(bytes);

    for (int i = 0; i < pool->n_streams; i++) {
        ptac_free_lists *lists = &pool->streams[i];
        ptac_block *block;

        if (lists == own || !ptac_free_lists_may_have(lists, bytes))
            continue;

        const bool is_quiet = ptac_free_lists_is_quiet(pool, lists, is_small);

        if (!is_quiet && !may_wait)
            continue;
        block = ptac_free_lists_take(pool, lists, bytes, stream, false);
        if (!block)
            continue;
        if (!is_quiet && !ptac_free_lists_wait(pool, lists, is_small, stream)) {
            ptac_pool_part(&pool->pool, block->address);
            ptac_pool_give(&pool->pool, block);
            continue;
        }
        ptac_stream_events_add(pool, block, stream);
        pool->pool.stats.stream_steals++;
        return block;
    }
    return NULL;
}

/* The driver gives no more: use what others have, then give back what is free. */
static ptac_block *take_hard(ptac_stream_pool *pool, size_t bytes, cu_stream stream,
                             ptac_free_lists *lists)
{
    ptac_block *block = NULL;

    if (lists && ptac_stream_events_wait(pool, lists, bytes))
        block = ptac_free_lists_take(pool, lists, bytes, stream, false);
    if (!block)
        block = steal(pool, bytes, stream, lists, true);
    if (block)
        return block;
    pool->pool.stats.num_alloc_retries++;
    if (ptac_free_lists_trim(pool))
        block = ptac_free_lists_take(pool, lists, bytes, stream, true);
    if (block)
        return block;
    wait_for_device(pool);

    const bool is_capturing = pool->capturing >= 0; /* since then: nothing goes back */

    if (!is_capturing)
        ptac_free_lists_trim(pool);
    lists = ptac_free_lists_find(pool, stream, -1);
    block = ptac_free_lists_take(pool, lists, bytes, stream, true);
    return block || is_capturing ? block : steal(pool, bytes, stream, lists, true);
}

static ptac_block *take(ptac_stream_pool *pool, size_t bytes, cu_stream stream)
{
    ptac_free_lists *lists = ptac_free_lists_find(pool, stream, graph_of(pool, stream));
    ptac_block *block = ptac_free_lists_take(pool, lists, bytes, stream, false);

    if (!block && pool->capturing < 0 && !ptac_is_small(bytes))
        block = steal(pool, bytes, stream, lists, false);
    if (!block)
        block = ptac_free_lists_take(pool, lists, bytes, stream, true);
    if (!block && pool->capturing < 0)
        block = take_hard(pool, bytes, stream, lists);
    return block;
}

ptac_alloc_result ptac_stream_pool_alloc(ptac_stream_pool *pool, size_t bytes,
                                         cu_stream stream, void **memory)
{
    ptac_block *block;

    *memory = NULL;
    if (bytes == 0)
        return PTAC_ALLOC_DONE;

    PTAC_LOCKED(&pool->pool.lock);
    if (pool->is_child)
        return PTAC_ALLOC_FORKED;
    pool->grow_error = PTAC_CU_OK;
    ptac_stream_events_process(pool);
    block = take(pool, bytes, stream);
    if (block) {
        *memory = (void *)block->address;
        ptac_history_note(&pool->pool.history, PTAC_EVENT_ALLOC, block->address,
                          block->bytes, (uintptr_t)stream);
        return PTAC_ALLOC_DONE;
    }
    pool->pool.stats.num_ooms++;
    ptac_history_note(&pool->pool.history, PTAC_EVENT_OOM, 0, bytes, (uintptr_t)stream);
    return pool->grow_error == PTAC_CU_OK || pool->grow_error == PTAC_CU_OUT_OF_MEMORY
               ? PTAC_ALLOC_OUT_OF_MEMORY
               : PTAC_ALLOC_BROKEN;
}

bool ptac_stream_pool_free(ptac_stream_pool *pool, void *memory)
{
    ptac_block *block;

    if (!memory)
        return true;

    PTAC_LOCKED(&pool->pool.lock);
    if (pool->is_child)
        return true;
    block = ptac_pool_part(&pool->pool, (uintptr_t)memory);
    if (!block)
        return false;
    ptac_history_note(&pool->pool.history, PTAC_EVENT_FREE_REQUESTED, block->address,
                      block->bytes, block->stream);
    if (block->uses || block->flags & PTAC_BLOCK_UNSURE) {
        ptac_stream_events_end(pool, block);
    } else {
        ptac_history_note(&pool->pool.history, PTAC_EVENT_FREE_COMPLETED,
                          block->address, block->bytes, block->stream);
        ptac_free_lists_note(pool, ptac_free_lists_of(pool, block),
                             pool->pool.arenas[block->arena]->is_small);
        ptac_pool_give(&pool->pool, block);
    }
    return true;
}

bool ptac_stream_pool_record(ptac_stream_pool *pool, void *memory, cu_stream stream)
{
    PTAC_LOCKED(&pool->pool.lock);
    ptac_block *block = ptac_table_find(&pool->pool.used, (uintptr_t)memory);

    if (block && block->stream != (uintptr_t)stream && !pool->is_child)
        ptac_stream_events_add(pool, block, stream);
    return block != NULL;
}

void ptac_stream_pool_set_cap(ptac_stream_pool *pool, size_t cap)
{
    PTAC_LOCKED(&pool->pool.lock);
    pool->options.cap = cap;
}
