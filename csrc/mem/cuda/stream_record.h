/*
 * stream_record.h - events behind a stream's work, for free lists and for uses alike.
 */
#ifndef PTAC_MEM_CUDA_STREAM_RECORD_H
#define PTAC_MEM_CUDA_STREAM_RECORD_H

#include "mem/cuda/stream_pool.h"

/* Makes the event if there is none, and records it behind the stream's work. */
bool ptac_stream_events_record(ptac_stream_pool *pool, cu_event *event,
                               cu_stream stream);

/* Notes what the driver says; whether it is success. */
static inline bool ptac_cuda_done(ptac_stream_pool *pool, cu_result result)
{
    if (result != PTAC_CU_OK && result != PTAC_CU_NOT_READY)
        pool->error = result;
    return result == PTAC_CU_OK;
}

#endif
