/*
 * stream_record.c - an event behind a stream's work, for free lists and for uses alike.
 */
#include "mem/cuda/stream_record.h"

bool ptac_stream_events_record(ptac_stream_pool *pool, cu_event *event,
                               cu_stream stream)
{
    bool is_done = false;

    if (!ptac_cuda_enter(&pool->device))
        return false;
    is_done = *event || ptac_cuda_done(pool, ptac_cuda.event_create(
                                                 event, PTAC_CU_EVENT_DISABLE_TIMING));
    is_done = is_done && ptac_cuda_done(pool, ptac_cuda.event_record(*event, stream));
    ptac_cuda_leave();
    return is_done;
}
