/*
 * stream_free_lists.c - two arenas a stream, and what is known of work on their free
 * blocks.
 */
#include "mem/cuda/stream_free_lists.h"

bool ptac_stream_event_record(ptac_stream_pool *pool, cu_event *event, cu_stream stream)
{
    cu_result result = PTAC_CU_OK;

    if (!ptac_cuda_enter(&pool->device))
        return false;
    if (!*event)
        result = ptac_cuda.event_create(event, PTAC_CU_EVENT_DISABLE_TIMING);
    if (result == PTAC_CU_OK)
        result = ptac_cuda.event_record(*event, stream);
    return ptac_cuda_leave(result) == PTAC_CU_OK;
}

bool ptac_stream_event_wait(ptac_stream_pool *pool, cu_event event, cu_stream stream)
{
    return PTAC_CUDA_WITHIN(&pool->device, ptac_cuda.stream_wait(stream, event, 0)) ==
           PTAC_CU_OK;
}

static bool is_empty(const ptac_free_lists *lists)
{
    for (int i = 0; i < 2; i++)
        if (lists->arenas[i] && (lists->arenas[i]->top != lists->arenas[i]->base ||
                                 lists->arenas[i]->held.current > 0))
            return false;
    return true;
}

void ptac_free_lists_note(ptac_stream_pool *pool, ptac_free_lists *lists, bool is_small)
{
    lists->freed_at[is_small] = pool->waits_begun;
    if (is_small)
        return;
    lists->is_ended = false;
    /* Now, while the stream is sure to be there; a program with one needs none. */
    lists->is_recorded = lists->kind == PTAC_LISTS_STREAM && pool->n_streams > 1 &&
                         pool->capturing < 0 &&
                         ptac_stream_event_record(pool, &lists->event, lists->stream);
}

/* Lists that hold nothing, of a stream that may be gone. */
static ptac_free_lists *find_empty(ptac_stream_pool *pool)
{
    if (pool->n_streams < PTAC_MAX_STREAMS) {
        if (pool->n_streams++ == 1 && pool->streams[0].arenas[0])
            ptac_free_lists_note(pool, &pool->streams[0],
                                 false); /* others may want them now */
        return &pool->streams[pool->n_streams - 1];
    }
    for (int i = 0; i < pool->n_streams; i++)
        if (pool->streams[i].kind == PTAC_LISTS_STREAM && is_empty(&pool->streams[i]))
            return &pool->streams[i];
    return NULL;
}

ptac_free_lists *ptac_free_lists_find(ptac_stream_pool *pool, cu_stream stream,
                                      int graph)
{
    const ptac_free_lists_kind kind = graph < 0 ? PTAC_LISTS_STREAM : PTAC_LISTS_GRAPH;
    ptac_free_lists *vacant = NULL;

    for (int i = 0; i < pool->n_streams; i++) {
        ptac_free_lists *lists = &pool->streams[i];

        if (lists->kind == kind && lists->stream == stream && lists->graph == graph)
            return lists;
        if (lists->kind == PTAC_LISTS_VACANT)
            vacant = lists;
    }
    if (!vacant)
        vacant = find_empty(pool);
    if (vacant) {
        vacant->kind = kind;
        vacant->stream = stream;
        vacant->graph = graph;
        vacant->is_recorded = vacant->is_ended = false;
        vacant->freed_at[0] = vacant->freed_at[1] = -1;
        for (int i = 0; i < 2; i++)
            if (vacant->arenas[i])
                vacant->arenas[i]->stream = (uintptr_t)stream;
    }
    return vacant;
}

/* As many addresses as the device has memory, so that the arena never lacks any. */
static ptac_arena *open_arena(ptac_stream_pool *pool, ptac_free_lists *lists,
                              bool is_small)
{
    const size_t chunk =
        is_small ? pool->options.small_chunk : pool->options.large_chunk;
    const ptac_arena like = {
        .source = &lists->sources[is_small].source,
        .policy = pool->options.policy,
        .granule = PTAC_CUDA_GRANULE,
        .least_bytes = is_small ? PTAC_CUDA_GRANULE : PTAC_SMALL_BYTES,
        .is_small = is_small,
        .stream = (uintptr_t)lists->stream,
    };
    ptac_arena *arena;

    ptac_source_cuda_init(&lists->sources[is_small], &pool->device, chunk);
    arena = ptac_pool_add_arena(&pool->pool, &like,
                                ptac_round_up(pool->device.total_bytes, chunk));
    if (arena)
        pool->lists_of[arena->number] = (uint8_t)(lists - pool->streams);
    return arena;
}

/* New memory; the driver takes that ill while a graph is captured, unless relaxed. */
static ptac_block *grow(ptac_stream_pool *pool, ptac_free_lists *lists, size_t bytes)
{
    const bool is_small = ptac_is_small(bytes);
    cu_capture_mode mode = PTAC_CU_CAPTURE_MODE_RELAXED;
    const bool is_capturing = pool->capturing >= 0;
    ptac_block *block = NULL;

    if (!ptac_cuda_enter(&pool->device))
        return NULL;
    if (!is_capturing || ptac_cuda.capture_mode(&mode) == PTAC_CU_OK) {
        pool->pool.budget.cap = pool->options.cap;
        lists->sources[is_small].error = PTAC_CU_OK;
        if (!lists->arenas[is_small])
            lists->arenas[is_small] = open_arena(pool, lists, is_small);
        if (lists->arenas[is_small])
            block = ptac_pool_take(&pool->pool, lists->arenas[is_small], bytes);
        pool->grow_error = lists->sources[is_small].error;
        if (is_capturing)
            ptac_cuda.capture_mode(&mode);
    }
    ptac_cuda_leave(PTAC_CU_OK);
    return block;
}

ptac_block *ptac_free_lists_take(ptac_stream_pool *pool, ptac_free_lists *lists,
                                 size_t bytes, cu_stream stream, bool may_grow)
{
    ptac_arena *arena = lists ? lists->arenas[ptac_is_small(bytes)] : NULL;
    ptac_block *block = NULL;

    pool->pool.budget.cap = (size_t)pool->pool.budget.held.current;
    if (lists && may_grow)
        block = grow(pool, lists, bytes);
    else if (arena)
        block = ptac_pool_take(&pool->pool, arena, bytes);
    if (block) {
        block->stream = (uintptr_t)stream;
        block->uses = NULL;
    }
    return block;
}

bool ptac_free_lists_may_have(const ptac_free_lists *lists, size_t bytes)
{
    const ptac_arena *arena = lists->arenas[ptac_is_small(bytes)];

    return lists->kind == PTAC_LISTS_STREAM && arena &&
           (size_t)arena->free_bytes.current + (arena->held_end - arena->top) >= bytes;
}

bool ptac_free_lists_is_quiet(ptac_stream_pool *pool, ptac_free_lists *lists,
                              bool is_small)
{
    if (lists->freed_at[is_small] < pool->waited_for)
        return true;
    if (!is_small && lists->is_recorded && !lists->is_ended) {
        const cu_result result = ptac_cuda.event_query(lists->event);

        lists->is_ended = result == PTAC_CU_OK;
        lists->is_recorded = lists->is_ended || result == PTAC_CU_NOT_READY;
    }
    return !is_small && lists->is_ended;
}

bool ptac_free_lists_wait(ptac_stream_pool *pool, ptac_free_lists *lists, bool is_small,
                          cu_stream stream)
{
    if (is_small || !lists->is_recorded) {
        lists->is_ended = false;
        lists->is_recorded =
            ptac_stream_event_record(pool, &lists->event, lists->stream);
    }
    return lists->is_recorded && ptac_stream_event_wait(pool, lists->event, stream);
}

size_t ptac_free_lists_trim(ptac_stream_pool *pool)
{
    size_t released = 0;

    if (!ptac_cuda_enter(&pool->device))
        return 0;
    for (int i = 0; i < pool->n_streams; i++) {
        ptac_free_lists *lists = &pool->streams[i];

        if (lists->kind != PTAC_LISTS_STREAM && lists->kind != PTAC_LISTS_RELEASED)
            continue;
        for (int k = 0; k < 2; k++)
            if (lists->arenas[k] && ptac_free_lists_is_quiet(pool, lists, k))
                released += ptac_arena_trim(lists->arenas[k]);
        if (lists->kind == PTAC_LISTS_RELEASED && is_empty(lists))
            lists->kind = PTAC_LISTS_VACANT;
    }
    ptac_cuda_leave(PTAC_CU_OK);
    pool->pool.stats.purged_bytes += (int64_t)released;
    return released;
}
