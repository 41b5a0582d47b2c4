/*
 * cuda_memory.c - the CUDA pool's entries, statistics and blocks, for Python.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/allocator/cuda_allocator.h"
#include "mem/cuda/pinned_pool.h"

#include <stdlib.h>

/* cuda_pool_open(policy, cap, history): None, or what is wrong. */
static PyObject *cuda_pool_open(PyObject *self, PyObject *args)
{
    unsigned long long cap, history;
    const char *policy, *trouble;

    (void)self;
    if (!PyArg_ParseTuple(args, "sKK", &policy, &cap, &history))
        return NULL;

    const ptac_stream_pool_options options = {
        .policy = ptac_policy_find(policy), .cap = cap, .n_history = history};

    if (!options.policy)
        return PyErr_Format(PyExc_ValueError, "there is no policy %s", policy);
    Py_BEGIN_ALLOW_THREADS
    trouble = ptac_cuda_allocator_open(&options);
    Py_END_ALLOW_THREADS
    return trouble ? PyUnicode_FromString(trouble) : Py_NewRef(Py_None);
}

/* cuda_pool_entries() -> {name in torch: address} */
static PyObject *cuda_pool_entries(PyObject *self, PyObject *unused)
{
    PyObject *dict = PyDict_New();

    (void)self;
    (void)unused;
#define X(name, result, parameters)                                                    \
    if (dict) {                                                                        \
        PyObject *address = PyLong_FromVoidPtr(                                        \
            *(void **)&(result(*[1]) parameters){ptac_cuda_##name});                   \
        if (!address || PyDict_SetItemString(dict, #name, address) < 0)                \
            Py_CLEAR(dict);                                                            \
        Py_XDECREF(address);                                                           \
    }
    PTAC_CUDA_ENTRIES(X)
#undef X
    return dict;
}

/* cuda_pool_stats(device) -> dict, empty while the device has not been used */
static PyObject *cuda_pool_stats(PyObject *self, PyObject *number)
{
    const long device = PyLong_AsLong(number);
    ptac_stream_pool *pool = ptac_cuda_pool((int)device);
    ptac_mem_stats stats;
    PyObject *dict;

    (void)self;
    if (device == -1 && PyErr_Occurred())
        return NULL;
    dict = PyDict_New();
    if (!dict || !pool)
        return dict;
    ptac_stream_pool_stats(pool, &stats);
    if (ptac_put_mem_stats(dict, &stats) < 0)
        Py_CLEAR(dict);
    return dict;
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

    return Py_BuildValue("KKKKKNNK", (unsigned long long)arena->base,
                         (unsigned long long)arena->held.current,
                         (unsigned long long)b->address, (unsigned long long)b->bytes,
                         (unsigned long long)(is_free ? 0 : b->requested),
                         PyBool_FromLong(is_free), PyBool_FromLong(arena->is_small),
                         (unsigned long long)b->stream);
}

/*
 * cuda_pool_blocks(device) -> [(arena's base, bytes it holds, address, bytes,
 * requested, is free, is small, stream)] by address within an arena
 */
static PyObject *cuda_pool_blocks(PyObject *self, PyObject *number)
{
    const long device = PyLong_AsLong(number);
    ptac_stream_pool *pool = ptac_cuda_pool((int)device);
    copied_block *copies = NULL;
    PyObject *list;
    size_t n = 0, room = 0;

    (void)self;
    if (device == -1 && PyErr_Occurred())
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
        if (ptac_append_stolen(list, block_row(pool, &copies[i])) < 0)
            Py_CLEAR(list);
    free(copies);
    return list;
}

/* cuda_pool_history(device) -> as pool_history() */
static PyObject *cuda_pool_history(PyObject *self, PyObject *number)
{
    const long device = PyLong_AsLong(number);
    ptac_stream_pool *pool = ptac_cuda_pool((int)device);

    (void)self;
    if (device == -1 && PyErr_Occurred())
        return NULL;
    return pool ? ptac_history_list(&pool->pool) : PyList_New(0);
}

static PyObject *cuda_pool_reset_peaks(PyObject *self, PyObject *number)
{
    const long device = PyLong_AsLong(number);

    (void)self;
    if (device == -1 && PyErr_Occurred())
        return NULL;
    if (ptac_cuda_pool((int)device))
        ptac_pool_reset_peaks(&ptac_cuda_pool((int)device)->pool);
    Py_RETURN_NONE;
}

static PyObject *cuda_pool_trim(PyObject *self, PyObject *unused)
{
    size_t bytes;

    (void)self;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    bytes = ptac_cuda_trim();
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(bytes);
}

/* pinned_open(bytes, threads): None, or what is wrong. */
static PyObject *pinned_open(PyObject *self, PyObject *args)
{
    unsigned long long bytes;
    const char *trouble;
    int n_threads;

    (void)self;
    if (!PyArg_ParseTuple(args, "Ki", &bytes, &n_threads))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    trouble = ptac_cuda_load("libcuda.so.1");
    if (!trouble)
        trouble = ptac_pinned_open(bytes, n_threads);
    Py_END_ALLOW_THREADS
    return trouble ? PyUnicode_FromString(trouble) : Py_NewRef(Py_None);
}

/* pinned_close() -> whether it is gone: no block is used. */
static PyObject *pinned_close(PyObject *self, PyObject *unused)
{
    bool is_closed;

    (void)self;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    is_closed = ptac_pinned_close();
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_closed);
}

/* pinned_alloc(bytes) -> address, or None when there is no room */
static PyObject *pinned_alloc(PyObject *self, PyObject *number)
{
    const size_t bytes = PyLong_AsSize_t(number);
    void *memory;

    (void)self;
    if (bytes == (size_t)-1 && PyErr_Occurred())
        return NULL;
    memory = ptac_pinned_alloc(bytes);
    return memory ? PyLong_FromVoidPtr(memory) : Py_NewRef(Py_None);
}

static PyObject *pinned_free(PyObject *self, PyObject *address)
{
    void *memory = PyLong_AsVoidPtr(address);

    (void)self;
    if (!memory && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(ptac_pinned_free(memory));
}

static PyObject *pinned_stats(PyObject *self, PyObject *unused)
{
    PyObject *dict = PyDict_New();
    ptac_mem_stats stats;

    (void)self;
    (void)unused;
    ptac_pinned_stats(&stats);
    if (dict && ptac_put_mem_stats(dict, &stats) < 0)
        Py_CLEAR(dict);
    return dict;
}

PyMethodDef ptac_cuda_memory_methods[] = {
    {"cuda_pool_open", cuda_pool_open, METH_VARARGS, NULL},
    {"cuda_pool_entries", cuda_pool_entries, METH_NOARGS, NULL},
    {"cuda_pool_stats", cuda_pool_stats, METH_O, NULL},
    {"cuda_pool_blocks", cuda_pool_blocks, METH_O, NULL},
    {"cuda_pool_history", cuda_pool_history, METH_O, NULL},
    {"cuda_pool_reset_peaks", cuda_pool_reset_peaks, METH_O, NULL},
    {"cuda_pool_trim", cuda_pool_trim, METH_NOARGS, NULL},
    {"pinned_open", pinned_open, METH_VARARGS, NULL},
    {"pinned_close", pinned_close, METH_NOARGS, NULL},
    {"pinned_alloc", pinned_alloc, METH_O, NULL},
    {"pinned_free", pinned_free, METH_O, NULL},
    {"pinned_stats", pinned_stats, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
