/*
 * stream_free_lists.h - lanes of a stream pool, and the uses that blocks wait for.
 *
 * For stream_pool.c. All are called with the pool's lock held.
 */
#ifndef PTAC_MEM_CUDA_STREAM_FREE_LISTS_H
#define PTAC_MEM_CUDA_STREAM_FREE_LISTS_H

#include "mem/cuda/stream_pool.h"

/* The lane of the stream, or of the graph that it is captured for; NULL: too many. */
ptac_lane *ptac_lane_find(ptac_stream_pool *pool, cu_stream stream, int graph);

static inline ptac_lane *ptac_lane_of(ptac_stream_pool *pool, const ptac_block *block)
{
    return &pool->lanes[pool->lane_of[block->arena]];
}

/* A block from what the lane holds; with may_grow, from new memory too. */
ptac_block *ptac_lane_take(ptac_stream_pool *pool, ptac_lane *lane, size_t bytes,
                           bool may_grow);
/* The lane's stream is the last to have used a block of it that becomes free. */
void ptac_lane_note(ptac_stream_pool *pool, ptac_lane *lane, bool is_small);

/* Whether the lane may have so much free memory without growing. */
bool ptac_lane_may_have(const ptac_lane *lane, size_t bytes);
/* Whether all work on what is free in this arena of the lane is known to have ended. */
bool ptac_lane_is_quiet(ptac_stream_pool *pool, ptac_lane *lane, bool is_small);
/* Has the stream wait for that work; false when it cannot be made to. */
bool ptac_lane_wait(ptac_stream_pool *pool, ptac_lane *lane, bool is_small,
                    cu_stream stream);
/* The memory of quiet lanes that no block touches goes back to the driver; bytes. */
size_t ptac_lane_trim(ptac_stream_pool *pool);

/* Note that the stream uses the block; without memory for that, the block is unsure. */
void ptac_use_add(ptac_stream_pool *pool, ptac_block *block, cu_stream stream);
/* A parted block with uses becomes pending: an event is recorded behind each. */
void ptac_use_end(ptac_stream_pool *pool, ptac_block *block);
/* Pending blocks whose uses have ended become free. */
void ptac_use_process(ptac_stream_pool *pool);
/* Has the lane's stream wait for pending blocks of its own that have this size. */
bool ptac_use_wait(ptac_stream_pool *pool, ptac_lane *lane, size_t bytes);
void ptac_use_close(ptac_stream_pool *pool);

/* Makes the event if there is none, and records it behind the stream's work. */
bool ptac_use_record(ptac_stream_pool *pool, cu_event *event, cu_stream stream);

static inline bool ptac_is_small(size_t bytes)
{
    return bytes <= PTAC_SMALL_BYTES;
}

/* Notes what the driver says; whether it is success. */
static inline bool ptac_cuda_done(ptac_stream_pool *pool, cu_result result)
{
    if (result != PTAC_CU_OK && result != PTAC_CU_NOT_READY)
        pool->error = result;
    return result == PTAC_CU_OK;
}

#endif
