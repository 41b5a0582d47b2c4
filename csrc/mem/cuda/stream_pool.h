/*
 * stream_pool.h - a pool for a device whose work is queued on streams.
 *
 * Words used here, beyond those of block.h:
 *   lists    what one stream's requests are cut from: an arena for small blocks and one
 *            for large blocks
 *   use      another stream's work on a block (record_stream), with the event behind it
 *   pending  freed, but some of its uses may not have ended; counted as active
 *   steal    a block from another stream's lists
 *
 * A free block of a stream's lists may be used by whatever that stream does from now
 * on: all work that has used the block comes earlier in the stream's order. So a freed
 * block is reused at once on its own stream, and by others only behind the lists'
 * event.
 *
 * Order of a request: uses that have ended; the lists' free blocks; for large ones,
 * free blocks of streams whose work has ended; new memory. When there is none: own
 * pending blocks and free blocks of other streams, behind a wait of the stream; memory
 * of streams whose work has ended goes back to the driver; so does, after a wait for
 * the whole device, everything that is free. The lock is not held during that wait.
 *
 * Streams that have been destroyed lose nothing: where no event can be recorded, a
 * block comes back after the next wait for the whole device. As with torch's own
 * allocator, a new stream must not get the handle of one that still has work.
 */
#ifndef PTAC_MEM_CUDA_STREAM_POOL_H
#define PTAC_MEM_CUDA_STREAM_POOL_H

#include "mem/engine/pool.h"
#include "mem/cuda/source_cuda.h"

enum {
    PTAC_MAX_STREAMS = PTAC_MAX_ARENAS / 2,
    PTAC_MAX_GRAPHS = 64,
    PTAC_CUDA_GRANULE = 512, /* what torch aligns CUDA storages to */
};

typedef struct ptac_stream_use {
    struct ptac_stream_use *next;
    cu_stream stream;
    cu_event event;   /* made when it is first needed, kept for the next use */
    bool is_recorded; /* else a graph was being captured when it should have been */
} ptac_stream_use;

_Static_assert(sizeof(ptac_stream_use) <= sizeof(ptac_block),
               "uses are kept in records");

/* Who may be served by these lists. */
typedef enum ptac_free_lists_kind {
    PTAC_LISTS_VACANT, /* its arenas hold nothing; to be had by anyone */
    PTAC_LISTS_STREAM,
    PTAC_LISTS_GRAPH,    /* requests of this stream while the graph is captured */
    PTAC_LISTS_RELEASED, /* a graph's that is gone: vacant after a wait */
} ptac_free_lists_kind;

typedef struct ptac_free_lists {
    ptac_free_lists_kind kind;
    cu_stream stream;
    int graph; /* the slot of it */
    ptac_source_cuda sources[2];
    ptac_arena *arenas[2]; /* large, small; NULL until one is needed */
    cu_event event;        /* behind the last large block that became free */
    bool is_recorded;      /* it has been, since then */
    bool is_ended;         /* and was seen to have come */
    int64_t freed_at[2];   /* waits for the device begun before the last block came */
} ptac_free_lists;

/* One pool of memory that graphs share, as torch numbers them. */
typedef struct ptac_graph {
    uint64_t id[2];
    int n_holders; /* 0: the slot is free */
} ptac_graph;

typedef struct ptac_stream_pool_options {
    const ptac_policy *policy;
    size_t cap;                      /* bytes; SIZE_MAX: what the device has */
    size_t small_chunk, large_chunk; /* 0: 2 MiB and 16 MiB; powers of two */
    size_t n_history;
} ptac_stream_pool_options;

typedef struct ptac_stream_pool {
    ptac_pool pool; /* its budget's cap is what it holds, except while it may grow */
    ptac_cuda_device device;
    ptac_stream_pool_options options;
    ptac_free_lists streams[PTAC_MAX_STREAMS];
    int n_streams;
    uint8_t lists_of[PTAC_MAX_ARENAS];
    ptac_graph graphs[PTAC_MAX_GRAPHS];
    int capturing; /* the slot of the graph that is being captured; -1: none */
    ptac_block *pending, **pending_end; /* linked by previous */
    ptac_stream_use *spare_uses;
    int64_t waits_begun, waited_for; /* for the device: how many; the last that ended */
    cu_result grow_error; /* why the last request for new memory had none; 0: the cap */
    bool is_child;        /* the process was forked: the device is the parent's, and
                             frees do nothing. Whoever forks holds the lock. */
} ptac_stream_pool;

typedef enum ptac_alloc_result {
    PTAC_ALLOC_DONE,
    PTAC_ALLOC_OUT_OF_MEMORY,
    PTAC_ALLOC_FORKED,
    PTAC_ALLOC_BROKEN, /* the driver fails with another error than memory */
} ptac_alloc_result;

/*
 * The driver is loaded, the pool zeroed; it is never moved, and never closed: a block
 * may come back as long as the process lives. NULL, or why it cannot be.
 */
const char *ptac_stream_pool_open(ptac_stream_pool *pool, int device,
                                  const ptac_stream_pool_options *options);

/* bytes == 0: NULL, and done. Addresses are multiples of PTAC_CUDA_GRANULE. */
ptac_alloc_result ptac_stream_pool_alloc(ptac_stream_pool *pool, size_t bytes,
                                         cu_stream stream, void **memory);
/* False, and nothing done, when no used block begins there. */
bool ptac_stream_pool_free(ptac_stream_pool *pool, void *memory);
/* What the stream has queued when the block is freed uses it; unknown blocks: false. */
bool ptac_stream_pool_record(ptac_stream_pool *pool, void *memory, cu_stream stream);

/* Waits for the device and gives back what is free, but graphs keep theirs; bytes. */
size_t ptac_stream_pool_trim(ptac_stream_pool *pool);
void ptac_stream_pool_set_cap(ptac_stream_pool *pool, size_t cap);

/*
 * Between begin and end, requests of streams that are being captured are served by
 * streams that nobody else uses, nothing is asked of events, and nothing goes back to
 * the driver. The graph's addresses stay its own until it has been released as often as
 * it was begun. NULL, or why it cannot be captured.
 */
const char *ptac_stream_pool_capture_begin(ptac_stream_pool *pool,
                                           const uint64_t id[2]);
void ptac_stream_pool_capture_end(ptac_stream_pool *pool, const uint64_t id[2]);
void ptac_stream_pool_capture_release(ptac_stream_pool *pool, const uint64_t id[2]);

#endif
