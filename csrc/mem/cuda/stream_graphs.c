/*
 * stream_graphs.c - which graph is being captured, and who still holds its addresses.
 */
#include "mem/cuda/stream_pool.h"

#include <string.h>

/* The slot of a graph that somebody holds; -1: of none. */
static int find_graph(const ptac_stream_pool *pool, const uint64_t id[2])
{
    for (int i = 0; i < PTAC_MAX_GRAPHS; i++)
        if (pool->graphs[i].n_holders > 0 &&
            memcmp(pool->graphs[i].id, id, sizeof pool->graphs[i].id) == 0)
            return i;
    return -1;
}

const char *ptac_stream_pool_capture_begin(ptac_stream_pool *pool, const uint64_t id[2])
{
    PTAC_LOCKED(&pool->pool.lock);
    int slot = find_graph(pool, id);

    for (int i = 0; slot < 0 && i < PTAC_MAX_GRAPHS; i++)
        slot = pool->graphs[i].n_holders > 0 ? -1 : i;
    if (pool->capturing >= 0)
        return "another graph is being captured on this device";
    if (slot < 0)
        return "there are too many graphs";
    memcpy(pool->graphs[slot].id, id, sizeof pool->graphs[slot].id);
    pool->graphs[slot].n_holders++;
    pool->capturing = slot;
    return NULL;
}

void ptac_stream_pool_capture_end(ptac_stream_pool *pool, const uint64_t id[2])
{
    PTAC_LOCKED(&pool->pool.lock);
    if (pool->capturing >= 0 && pool->capturing == find_graph(pool, id))
        pool->capturing = -1;
}

void ptac_stream_pool_capture_release(ptac_stream_pool *pool, const uint64_t id[2])
{
    PTAC_LOCKED(&pool->pool.lock);
    const int graph = find_graph(pool, id);

    if (graph < 0 || --pool->graphs[graph].n_holders > 0)
        return;
    for (int i = 0; i < pool->n_streams; i++) {
        ptac_free_lists *lists = &pool->streams[i];

        if (lists->kind != PTAC_LISTS_GRAPH || lists->graph != graph)
            continue;
        lists->kind = PTAC_LISTS_RELEASED; /* it may still be replayed just now */
        lists->freed_at[0] = lists->freed_at[1] = pool->waits_begun;
        lists->is_recorded = lists->is_ended = false;
    }
}
