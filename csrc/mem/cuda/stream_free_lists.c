/*
 * stream_free_lists.c - two arenas a stream, and what is known of work on their free blocks.
 */
#include "mem/cuda/stream_free_lists.h"

static bool is_empty(const ptac_lane *lane)
{
    for (int i = 0; i < 2; i++)
        if (lane->arenas[i] && (lane->arenas[i]->top != lane->arenas[i]->base ||
                                lane->arenas[i]->held.current > 0))
            return false;
    return true;
}

void ptac_lane_note(ptac_stream_pool *pool, ptac_lane *lane, bool is_small)
{
    lane->freed_at[is_small] = pool->waits_begun;
    if (is_small)
        return;
    lane->is_ended = false;
    /* Now, while the stream is sure to be there; a program with one needs none. */
    lane->is_recorded = lane->kind == PTAC_LANE_STREAM && pool->n_lanes > 1 &&
                        pool->capturing < 0 &&
                        ptac_use_record(pool, &lane->event, lane->stream);
}

/* A lane that holds nothing, of a stream that may be gone. */
static ptac_lane *find_empty(ptac_stream_pool *pool)
{
    if (pool->n_lanes < PTAC_MAX_LANES) {
        if (pool->n_lanes++ == 1 && pool->lanes[0].arenas[0])
            ptac_lane_note(pool, &pool->lanes[0], false); /* others may want them now */
        return &pool->lanes[pool->n_lanes - 1];
    }
    for (int i = 0; i < pool->n_lanes; i++)
        if (pool->lanes[i].kind == PTAC_LANE_STREAM && is_empty(&pool->lanes[i]))
            return &pool->lanes[i];
    return NULL;
}

ptac_lane *ptac_lane_find(ptac_stream_pool *pool, cu_stream stream, int graph)
{
    const ptac_lane_kind kind = graph < 0 ? PTAC_LANE_STREAM : PTAC_LANE_GRAPH;
    ptac_lane *vacant = NULL;

    for (int i = 0; i < pool->n_lanes; i++) {
        ptac_lane *lane = &pool->lanes[i];

        if (lane->kind == kind && lane->stream == stream && lane->graph == graph)
            return lane;
        if (lane->kind == PTAC_LANE_VACANT)
            vacant = lane;
    }
    if (!vacant)
        vacant = find_empty(pool);
    if (vacant) {
        vacant->kind = kind;
        vacant->stream = stream;
        vacant->graph = graph;
        vacant->is_recorded = vacant->is_ended = false;
        vacant->freed_at[0] = vacant->freed_at[1] = -1;
    }
    return vacant;
}

/* As many addresses as the device has memory, so that the arena never lacks any. */
static ptac_arena *open_arena(ptac_stream_pool *pool, ptac_lane *lane, bool is_small)
{
    const size_t chunk =
        is_small ? pool->options.small_chunk : pool->options.large_chunk;
    const ptac_arena_spec spec = {
        .source = &lane->sources[is_small].source,
        .policy = pool->options.policy,
        .granule = PTAC_CUDA_GRANULE,
        .least_bytes = is_small ? PTAC_CUDA_GRANULE : PTAC_SMALL_BYTES,
        .reserve_bytes = (pool->device.total_bytes + chunk - 1) & ~(chunk - 1),
        .is_small = is_small,
    };
    ptac_arena *arena;

    ptac_source_cuda_init(&lane->sources[is_small], &pool->device, chunk);
    arena = ptac_pool_add_arena(&pool->pool, &spec);
    if (arena)
        pool->lane_of[arena->number] = (uint8_t)(lane - pool->lanes);
    return arena;
}

/* New memory; the driver takes that ill while a graph is captured, unless relaxed. */
static ptac_block *grow(ptac_stream_pool *pool, ptac_lane *lane, size_t bytes)
{
    const bool is_small = ptac_is_small(bytes);
    cu_capture_mode mode = PTAC_CU_CAPTURE_MODE_RELAXED;
    const bool is_capturing = pool->capturing >= 0;
    ptac_block *block = NULL;

    if (!ptac_cuda_enter(&pool->device))
        return NULL;
    if (!is_capturing || ptac_cuda_done(pool, ptac_cuda.capture_mode(&mode))) {
        pool->pool.budget.cap = pool->cap;
        lane->sources[is_small].error = PTAC_CU_OK;
        if (!lane->arenas[is_small])
            lane->arenas[is_small] = open_arena(pool, lane, is_small);
        if (lane->arenas[is_small])
            block = ptac_pool_take(&pool->pool, lane->arenas[is_small], bytes);
        pool->grow_error = lane->sources[is_small].error;
        if (is_capturing)
            ptac_cuda_done(pool, ptac_cuda.capture_mode(&mode));
    }
    ptac_cuda_leave();
    return block;
}

ptac_block *ptac_lane_take(ptac_stream_pool *pool, ptac_lane *lane, size_t bytes,
                           bool may_grow)
{
    const bool is_small = ptac_is_small(bytes);
    ptac_block *block = NULL;

    if (may_grow) {
        block = grow(pool, lane, bytes);
    } else if (lane->arenas[is_small]) {
        pool->pool.budget.cap = (size_t)pool->pool.budget.held.current;
        block = ptac_pool_take(&pool->pool, lane->arenas[is_small], bytes);
    }
    return block;
}

bool ptac_lane_may_have(const ptac_lane *lane, size_t bytes)
{
    const ptac_arena *arena = lane->arenas[ptac_is_small(bytes)];

    return lane->kind == PTAC_LANE_STREAM && arena &&
           (size_t)arena->free_bytes.current + (arena->held_end - arena->top) >= bytes;
}

bool ptac_lane_is_quiet(ptac_stream_pool *pool, ptac_lane *lane, bool is_small)
{
    if (lane->freed_at[is_small] < pool->waited_for)
        return true;
    if (!is_small && lane->is_recorded && !lane->is_ended) {
        const cu_result result = ptac_cuda.event_query(lane->event);

        lane->is_ended = ptac_cuda_done(pool, result);
        lane->is_recorded = lane->is_ended || result == PTAC_CU_NOT_READY;
    }
    return !is_small && lane->is_ended;
}

bool ptac_lane_wait(ptac_stream_pool *pool, ptac_lane *lane, bool is_small,
                    cu_stream stream)
{
    bool is_done;

    if (is_small || !lane->is_recorded) {
        lane->is_ended = false;
        lane->is_recorded = ptac_use_record(pool, &lane->event, lane->stream);
    }
    if (!lane->is_recorded || !ptac_cuda_enter(&pool->device))
        return false;
    is_done = ptac_cuda_done(pool, ptac_cuda.stream_wait(stream, lane->event, 0));
    ptac_cuda_leave();
    return is_done;
}

size_t ptac_lane_trim(ptac_stream_pool *pool)
{
    size_t released = 0;

    if (!ptac_cuda_enter(&pool->device))
        return 0;
    for (int i = 0; i < pool->n_lanes; i++) {
        ptac_lane *lane = &pool->lanes[i];

        if (lane->kind != PTAC_LANE_STREAM && lane->kind != PTAC_LANE_RELEASED)
            continue;
        for (int k = 0; k < 2; k++)
            if (lane->arenas[k] && ptac_lane_is_quiet(pool, lane, k))
                released += ptac_arena_trim(lane->arenas[k]);
        if (lane->kind == PTAC_LANE_RELEASED && is_empty(lane))
            lane->kind = PTAC_LANE_VACANT;
    }
    ptac_cuda_leave();
    pool->pool.stats.purged_bytes += (int64_t)released;
    return released;
}
