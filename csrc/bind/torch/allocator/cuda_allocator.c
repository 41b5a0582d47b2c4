/*
 * cuda_allocator.c - torch's requests for CUDA memory, answered by stream pools.
 *
 * Not to be had through these functions, and refused where torch asks: sharing memory
 * with other processes, access from another device, checkpoints of graph pools. torch
 * itself raises for statistics and snapshots of a pluggable allocator; ours are there.
 */
#include "bind/torch/allocator/cuda_allocator.h"

#include "bind/abi/torch_oom.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static ptac_stream_pool *pools[PTAC_MAX_DEVICES]; /* written under the lock, for good */
static ptac_stream_pool_options options;
static ptac_lock lock;

ptac_stream_pool *ptac_cuda_pool(int device)
{
    return device >= 0 && device < PTAC_MAX_DEVICES
               ? __atomic_load_n(&pools[device], __ATOMIC_ACQUIRE)
               : NULL;
}

/* --- fork: the child has no device ------------------------------------------------ */

static void before_fork(void)
{
    ptac_lock_take(&lock);
    for (int i = 0; i < PTAC_MAX_DEVICES; i++)
        if (pools[i])
            ptac_lock_take(&pools[i]->pool.lock);
}

static void after_fork(bool is_child)
{
    for (int i = PTAC_MAX_DEVICES; i-- > 0;)
        if (pools[i]) {
            pools[i]->is_child |= is_child;
            ptac_lock_give(&pools[i]->pool.lock);
        }
    ptac_lock_give(&lock);
}

static void after_fork_in_parent(void)
{
    after_fork(false);
}

static void after_fork_in_child(void)
{
    after_fork(true);
}

const char *ptac_cuda_allocator_open(const ptac_stream_pool_options *wanted)
{
    static bool is_watching;
    const char *trouble = ptac_cuda_load("libcuda.so.1");

    if (!trouble && !is_watching) {
        is_watching =
            pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
        if (!is_watching)
            trouble = "no handler for forks can be registered";
    }
    if (!trouble)
        options = *wanted;
    return trouble;
}

static const char *open_pool(int device)
{
    ptac_stream_pool *pool = ptac_pages_take(sizeof *pool);
    const char *trouble;

    if (!pool)
        return "no memory for the pool itself";
    trouble = ptac_stream_pool_open(pool, device, &options);
    if (trouble)
        munmap(pool, sizeof *pool);
    else
        __atomic_store_n(&pools[device], pool, __ATOMIC_RELEASE);
    return trouble;
}

/* Throws where there is none. */
static ptac_stream_pool *pool_of(int device)
{
    ptac_stream_pool *pool = ptac_cuda_pool(device);
    const char *trouble = NULL;

    if (pool)
        return pool;
    ptac_lock_take(&lock);
    if (device < 0 || device >= PTAC_MAX_DEVICES)
        trouble = "there is no such device";
    else if (!pools[device])
        trouble = open_pool(device);
    ptac_lock_give(&lock);
    if (trouble)
        ptac_torch_throw(trouble);
    return ptac_cuda_pool(device);
}

/* --- what torch calls ------------------------------------------------------------- */

typedef char size_text[32];

static const char *in_words(size_text text, size_t bytes)
{
    const int unit = (bytes >= (size_t)1 << 20) + (bytes >= (size_t)1 << 30);

    snprintf(text, sizeof(size_text), "%.2f %ciB",
             (double)bytes / (double)((size_t)1024 << 10 * unit), "KMG"[unit]);
    return text;
}

/* The sentences of torch's own allocator, which programs look for. */
static void throw_oom(ptac_stream_pool *pool, size_t bytes)
{
    size_text asked, total, left, allowed, used, unused;
    size_t free_bytes = 0, total_bytes = pool->device.total_bytes;
    ptac_mem_stats stats;
    char text[600];
    int n;

    PTAC_CUDA_WITHIN(&pool->device, ptac_cuda.memory_info(&free_bytes, &total_bytes));
    ptac_pool_stats(&pool->pool, &stats);

    const size_t allocated = (size_t)stats.allocated_bytes[PTAC_ALL].current;
    const size_t reserved = (size_t)stats.reserved_bytes[PTAC_ALL].current;

    n = snprintf(text, sizeof text,
                 "CUDA out of memory. Tried to allocate %s. GPU %d has a total "
                 "capacity of %s of which %s is free. ",
                 in_words(asked, bytes), pool->device.number,
                 in_words(total, total_bytes), in_words(left, free_bytes));
    if (pool->options.cap < total_bytes)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s allowed; ",
                      in_words(allowed, pool->options.cap));
    snprintf(text + n, sizeof text - (size_t)n,
             "Of the allocated memory %s is allocated by PyTorch, and %s is reserved "
             "by PyTorch but unallocated (pai_torchacc's pool).",
             in_words(used, allocated), in_words(unused, reserved - allocated));
    ptac_torch_throw_oom(text);
}

void *ptac_cuda_alloc(size_t bytes, int device, cu_stream stream)
{
    ptac_stream_pool *pool = pool_of(device);
    char text[200];
    void *memory;

    switch (ptac_stream_pool_alloc(pool, bytes, stream, &memory)) {
    case PTAC_ALLOC_DONE:
        break;
    case PTAC_ALLOC_OUT_OF_MEMORY:
        throw_oom(pool, bytes);
        break;
    case PTAC_ALLOC_FORKED:
        ptac_torch_throw("CUDA memory cannot be had in a forked process; use the start "
                         "method 'spawn'");
        break;
    case PTAC_ALLOC_BROKEN:
        snprintf(text, sizeof text, "the CUDA driver gives no memory: %s",
                 ptac_cuda_text(pool->grow_error));
        ptac_torch_throw(text);
        break;
    }
    return memory;
}

/* Called by destructors, which may not throw. The pool knows bytes and stream. */
void ptac_cuda_free(void *memory, size_t bytes, int device, cu_stream stream)
{
    ptac_stream_pool *pool = ptac_cuda_pool(device);

    if (memory && (!pool || !ptac_stream_pool_free(pool, memory))) {
        static const char text[] = "pai_torchacc: unknown CUDA memory was freed\n";

        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    }
}

void ptac_cuda_record_stream(void *memory, cu_stream stream)
{
    for (int i = 0; memory && i < PTAC_MAX_DEVICES; i++)
        if (ptac_cuda_pool(i) &&
            ptac_stream_pool_record(ptac_cuda_pool(i), memory, stream))
            return;
}

size_t ptac_cuda_reset(void)
{
    size_t released = 0;

    for (int i = 0; i < PTAC_MAX_DEVICES; i++)
        if (ptac_cuda_pool(i))
            released += ptac_stream_pool_trim(ptac_cuda_pool(i));
    return released;
}

void ptac_cuda_memory_fraction(double fraction, int device)
{
    ptac_stream_pool *pool = pool_of(device);

    if (!(fraction >= 0.0 && fraction <= 1.0))
        ptac_torch_throw("a fraction of memory lies between 0 and 1");
    ptac_stream_pool_set_cap(pool,
                             (size_t)(fraction * (double)pool->device.total_bytes));
}

void *ptac_cuda_base_alloc(void *memory, size_t *bytes)
{
    ptac_torch_throw("CUDA memory of pai_torchacc's pool cannot be shared with other "
                     "processes: its handles are cut into blocks");
}

/*
 * A pair of numbers and a std::function by value: two registers and a reference. The
 * filter is not asked: the driver tells which streams are captured.
 */
void ptac_cuda_begin_allocate_to_pool(int device, uint64_t id_0, uint64_t id_1,
                                      void *filter)
{
    const char *trouble = ptac_stream_pool_capture_begin(
        pool_of(device), (const uint64_t[2]){id_0, id_1});

    if (trouble)
        ptac_torch_throw(trouble);
}

void ptac_cuda_end_allocate_to_pool(int device, uint64_t id_0, uint64_t id_1)
{
    if (ptac_cuda_pool(device))
        ptac_stream_pool_capture_end(ptac_cuda_pool(device),
                                     (const uint64_t[2]){id_0, id_1});
}

void ptac_cuda_release_pool(int device, uint64_t id_0, uint64_t id_1)
{
    if (ptac_cuda_pool(device))
        ptac_stream_pool_capture_release(ptac_cuda_pool(device),
                                         (const uint64_t[2]){id_0, id_1});
}
