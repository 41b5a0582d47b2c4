/*
 * stream_free_lists.h - streams of a stream pool, and the uses that blocks wait for.
 *
 * For stream_pool.c. All are called with the pool's lock held.
 */
#ifndef PTAC_MEM_CUDA_STREAM_FREE_LISTS_H
#define PTAC_MEM_CUDA_STREAM_FREE_LISTS_H

#include "mem/cuda/stream_pool.h"

/* The lists of the stream, or of the graph that it is captured for; NULL: too many. */
ptac_free_lists *ptac_free_lists_find(ptac_stream_pool *pool, cu_stream stream,
                                      int graph);

static inline ptac_free_lists *ptac_free_lists_of(ptac_stream_pool *pool,
                                                  const ptac_block *block)
{
    return &pool->streams[pool->lists_of[block->arena]];
}

/*
 * A block for this stream from what the lists hold, or with may_grow from new memory;
 * NULL, as where there are no lists.
 */
ptac_block *ptac_free_lists_take(ptac_stream_pool *pool, ptac_free_lists *lists,
                                 size_t bytes, cu_stream stream, bool may_grow);
/* The lists' stream is the last to have used a block of it that becomes free. */
void ptac_free_lists_note(ptac_stream_pool *pool, ptac_free_lists *lists,
                          bool is_small);

/* Whether the lists may have so much free memory without growing. */
bool ptac_free_lists_may_have(const ptac_free_lists *lists, size_t bytes);
/* Whether work on what is free in this arena of the lists is known to have ended. */
bool ptac_free_lists_is_quiet(ptac_stream_pool *pool, ptac_free_lists *lists,
                              bool is_small);
/* Has the stream wait for that work; false when it cannot be made to. */
bool ptac_free_lists_wait(ptac_stream_pool *pool, ptac_free_lists *lists, bool is_small,
                          cu_stream stream);
/* The memory of quiet streams that no block touches goes back to the driver; bytes. */
size_t ptac_free_lists_trim(ptac_stream_pool *pool);

/* Makes the event if there is none, and records it behind the stream's work. */
bool ptac_stream_event_record(ptac_stream_pool *pool, cu_event *event,
                              cu_stream stream);
/* Has the stream wait for it. */
bool ptac_stream_event_wait(ptac_stream_pool *pool, cu_event event, cu_stream stream);
/* Note that the stream uses the block; without memory for that, the block is unsure. */
void ptac_stream_events_add(ptac_stream_pool *pool, ptac_block *block,
                            cu_stream stream);
/* A parted block with uses becomes pending: an event is recorded behind each. */
void ptac_stream_events_end(ptac_stream_pool *pool, ptac_block *block);
/* Pending blocks whose uses have ended become free. */
void ptac_stream_events_process(ptac_stream_pool *pool);
/* Has the lists' stream wait for pending blocks of its own that have this size. */
bool ptac_stream_events_wait(ptac_stream_pool *pool, ptac_free_lists *lists,
                             size_t bytes);

static inline bool ptac_is_small(size_t bytes)
{
    return bytes <= PTAC_SMALL_BYTES;
}

#endif
