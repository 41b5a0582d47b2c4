/*
 * cuda_memory.c - the CUDA pool's entries, statistics and blocks, for Python.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/allocator/cuda_allocator.h"
#include "mem/cuda/pinned_pool.h"

#include <stdlib.h>

/* cuda_pool_open(policy, cap, history): None, or what is wrong. */
PTAC_VARARGS(cuda_pool_open)
{
    ptac_stream_pool_options options = {0};
    const char *policy;

    if (!PyArg_ParseTuple(args, "skk", &policy, &options.cap, &options.n_history))
        return NULL;
    options.policy = ptac_policy_find(policy);
    if (!options.policy)
        return PyErr_Format(PyExc_ValueError, "there is no policy %s", policy);
    return Py_BuildValue("z", PTAC_UNLOCKED(ptac_cuda_allocator_open(&options)));
}

/* cuda_pool_entries() -> {name in torch: address} */
PTAC_NOARGS(cuda_pool_entries)
{
    PyObject *dict = PyDict_New();

#define X(name, result, parameters)                                                    \
    ptac_put(                                                                          \
        &dict, #name,                                                                  \
        PyLong_FromVoidPtr(*(void **)&(result(*[1]) parameters){ptac_cuda_##name}));
    PTAC_CUDA_ENTRIES(X)
#undef X
    return dict;
}

/* The device's pool, NULL while it has not been used; false with an exception set. */
static bool pool_of(PyObject *device, ptac_stream_pool **pool)
{
    const long number = PyLong_AsLong(device);

    *pool = ptac_cuda_pool((int)number);
    return number != -1 || !PyErr_Occurred();
}

/* cuda_pool_stats(device) -> dict, empty while the device has not been used */
PTAC_O(cuda_pool_stats, device)
{
    ptac_stream_pool *pool;
    ptac_mem_stats stats;

    if (!pool_of(device, &pool))
        return NULL;
    if (!pool)
        return PyDict_New();
    ptac_stream_pool_stats(pool, &stats);
    return ptac_mem_stats_dict(&stats);
}

/* One record of a snapshot, copied under the lock: no object is made there. */
typedef struct copied_block {
    uintptr_t address, stream;
    size_t bytes, requested;
    int arena;
    uint32_t flags;
} copied_block;

/* How many blocks there are; the first of them copied. */
static size_t copy_blocks(ptac_stream_pool *pool, copied_block *copies, size_t room)
{
    size_t n = 0;

    ptac_lock_take(&pool->pool.lock);
    for (int i = 0; i < pool->pool.n_arenas; i++) {
        for (const ptac_block *b = pool->pool.arenas[i]->last; b; b = b->below, n++) {
            if (n < room)
                copies[n] = (copied_block){
                    .address = b->address,
                    .stream = (uintptr_t)pool->streams[pool->lists_of[i]].stream,
                    .bytes = b->bytes,
                    .requested = b->requested,
                    .arena = i,
                    .flags = b->flags};
        }
    }
    ptac_lock_give(&pool->pool.lock);
    return n;
}

static PyObject *block_row(ptac_stream_pool *pool, const copied_block *b)
{
    const ptac_arena *arena = pool->pool.arenas[b->arena];
    const bool is_free = b->flags & PTAC_BLOCK_FREE;

    return Py_BuildValue("klkkkNNk", arena->base, arena->held.current, b->address,
                         b->bytes, is_free ? 0 : b->requested, PyBool_FromLong(is_free),
                         PyBool_FromLong(arena->is_small), b->stream);
}

/*
 * cuda_pool_blocks(device) -> [(arena's base, bytes it holds, address, bytes,
 * requested, is free, is small, stream)] by address within an arena
 */
PTAC_O(cuda_pool_blocks, device)
{
    ptac_stream_pool *pool;
    copied_block *copies = NULL;
    PyObject *list;
    size_t n = 0, room = 0;

    if (!pool_of(device, &pool))
        return NULL;
    while (pool && (room == 0 || n > room)) {
        free(copies);
        room = 2 * n + 64;
        copies = malloc(room * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();
        n = copy_blocks(pool, copies, room);
    }
    list = PyList_New(0);
    for (size_t i = n; list && i-- > 0;)
        ptac_append(&list, block_row(pool, &copies[i]));
    free(copies);
    return list;
}

/* cuda_pool_history(device) -> as pool_history() */
PTAC_O(cuda_pool_history, device)
{
    ptac_stream_pool *pool;

    if (!pool_of(device, &pool))
        return NULL;
    return pool ? ptac_history_list(&pool->pool) : PyList_New(0);
}

/* cuda_pool_reset_peaks(device): peaks become what is current. */
PTAC_O(cuda_pool_reset_peaks, device)
{
    ptac_stream_pool *pool;

    if (!pool_of(device, &pool))
        return NULL;
    if (pool)
        ptac_pool_reset_peaks(&pool->pool);
    Py_RETURN_NONE;
}

/* cuda_pool_trim(): wait for all devices -> bytes given back that no block used */
PTAC_GIVES(cuda_pool_trim, PyLong_FromSize_t(PTAC_UNLOCKED(ptac_cuda_trim())))

/* pinned_open(bytes, threads): None, or what is wrong. */
PTAC_VARARGS(pinned_open)
{
    const char *trouble;
    size_t bytes;
    int n_threads;

    if (!PyArg_ParseTuple(args, "ki", &bytes, &n_threads))
        return NULL;
    trouble = PTAC_UNLOCKED(ptac_cuda_load("libcuda.so.1"));
    if (!trouble)
        trouble = PTAC_UNLOCKED(ptac_pinned_open(bytes, n_threads));
    return Py_BuildValue("z", trouble);
}

/* pinned_close() -> whether it is gone: no block is used. */
PTAC_GIVES(pinned_close, PyBool_FromLong(PTAC_UNLOCKED(ptac_pinned_close())))

/* pinned_alloc(bytes) -> address, or None when there is no room */
PTAC_O(pinned_alloc, number)
{
    const size_t bytes = PyLong_AsSize_t(number);
    void *memory;

    if (bytes == (size_t)-1 && PyErr_Occurred())
        return NULL;
    memory = ptac_pinned_alloc(bytes);
    return memory ? PyLong_FromVoidPtr(memory) : Py_NewRef(Py_None);
}

/* pinned_free(address) -> whether a used block began there */
PTAC_O(pinned_free, address)
{
    void *memory = PyLong_AsVoidPtr(address);

    if (!memory && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(ptac_pinned_free(memory));
}
