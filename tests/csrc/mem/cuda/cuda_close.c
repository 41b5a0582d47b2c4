/*
 * cuda_close.c - everything of a stream pool goes back to the driver.
 */
#include "cuda_close.h"

bool cuda_close(ptac_stream_pool *pool)
{
    bool is_clean;

    ptac_stream_pool_trim(pool); /* which waits for the device */
    for (int i = 0; i < pool->n_streams; i++)
        if (pool->streams[i].event)
            ptac_cuda.event_destroy(pool->streams[i].event);
    for (ptac_stream_use *use = pool->spare_uses; use; use = use->next)
        if (use->event)
            ptac_cuda.event_destroy(use->event);
    is_clean = !pool->pending && pool->pool.used.n_blocks == 0;
    if (is_clean && ptac_cuda_enter(&pool->device)) {
        ptac_pool_close(&pool->pool);
        ptac_cuda_leave(PTAC_CU_OK);
    }
    ptac_history_close(&pool->pool.history);
    return is_clean && pool->pool.budget.held.current == 0;
}
