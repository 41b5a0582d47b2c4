/*
 * memory_trace.c - what a memory pool tells: statistics, blocks, events.
 *
 * The argument of each method is a CUDA device, or -1 for the CPU's pool.
 */
#include "bind/python/module/pybind.h"

#include "bind/torch/allocator/cuda_allocator.h"
#include "mem/cpu/cpu_pool.h"

#include <stdio.h>
#include <stdlib.h>

/* A method of a device's pool, NULL while the device has not been used. */
#define OF_POOL(name)                                                                  \
    static PyObject *name##_of_pool(ptac_pool *pool);                                  \
    PTAC_OF_NUMBER(name)                                                               \
    {                                                                                  \
        return name##_of_pool(pool_of(number));                                        \
    }                                                                                  \
    static PyObject *name##_of_pool(ptac_pool *pool)

static ptac_pool *pool_of(long number)
{
    ptac_stream_pool *streams = ptac_cuda_pool((int)number);

    return number == -1 ? ptac_cpu_pool() : streams ? &streams->pool : NULL;
}

static void put_stat(PyObject **dict, const char *name, const char *class,
                     const ptac_stat *stat)
{
    const struct {
        const char *name;
        int64_t value;
    } parts[] = {{"current", stat->current},
                 {"peak", stat->peak},
                 {"allocated", stat->allocated},
                 {"freed", stat->allocated - stat->current}};
    char key[96];

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(key, sizeof key, "%s%s.%s", name, class, parts[i].name);
        ptac_put(dict, key, PyLong_FromLongLong(parts[i].value));
    }
}

static PyObject *stats_dict(const ptac_mem_stats *s)
{
    static const char *const classes[PTAC_N_CLASSES] = {[PTAC_ALL] = ".all",
                                                        [PTAC_LARGE] = ".large_pool",
                                                        [PTAC_SMALL] = ".small_pool"};
    PyObject *dict = PyDict_New();

    for (int c = 0; c < PTAC_N_CLASSES; c++) {
#define X(name) put_stat(&dict, #name, classes[c], &s->name[c]);
        PTAC_CLASS_STATS(X)
#undef X
    }
#define X(name) ptac_put(&dict, #name, PyLong_FromLongLong(s->name));
    PTAC_PLAIN_STATS(X)
#undef X
#define X(name) ptac_put(&dict, "ptac." #name, PyLong_FromLongLong(s->name));
    PTAC_OWN_STATS(X)
#undef X
    put_stat(&dict, "ptac.arena_bytes", "", &s->arena_bytes);
    return dict;
}

/* pool_stats(device) -> dict with torch's keys, empty while it has not been used */
OF_POOL(pool_stats)
{
    ptac_mem_stats stats;

    if (!pool)
        return PyDict_New();
    ptac_pool_stats(pool, &stats);
    return stats_dict(&stats);
}

/* pool_reset_peaks(device): peaks become what is current. */
OF_POOL(pool_reset_peaks)
{
    if (pool)
        ptac_pool_reset_peaks(pool);
    Py_RETURN_NONE;
}

/* One record of a snapshot, copied under the lock: no object is made there. */
typedef struct copied_block {
    uintptr_t base, address, stream;
    size_t held, bytes, requested;
    bool is_small, is_free;
} copied_block;

static int by_address(const void *a, const void *b)
{
    const copied_block *x = a, *y = b;

    return x->base != y->base        ? (x->base < y->base ? -1 : 1)
           : x->address < y->address ? -1
                                     : x->address > y->address;
}

/*
 * Copies with room for so many, in any order; their number may be larger. A plan's
 * region is in no table and left out; its blocks in use are no neighbours of others.
 * An empty copy marks the end of what an arena spans or holds.
 */
static size_t copy_blocks(const ptac_pool *pool, copied_block *copies, size_t room)
{
    size_t n = 0;

    for (int i = 0; i < pool->n_arenas; i++) {
        const ptac_arena *arena = pool->arenas[i];
        const uintptr_t held_end = arena->base + (size_t)arena->held.current;
        copied_block copy = {
            .base = arena->base,
            .address = held_end > arena->top ? held_end : arena->top,
            .stream = arena->stream,
            .held = (size_t)arena->held.current,
            .is_small = arena->is_small,
        };

        if (n++ < room)
            copies[n - 1] = copy;
        for (const ptac_block *b = arena->last; b; b = b->below) {
            copy.is_free = b->flags & PTAC_BLOCK_FREE;
            copy.address = b->address;
            copy.bytes = b->bytes;
            copy.requested = copy.is_free ? 0 : b->requested;
            if (!copy.is_free && !pool->has_streams &&
                ptac_table_find(&pool->used, b->address) != b)
                continue;
            if (n++ < room)
                copies[n - 1] = copy;
        }
    }
    for (size_t i = 0; i < pool->used.n_slots; i++) {
        const ptac_block *b = pool->used.slots[i];

        if (b && b->flags & PTAC_BLOCK_PLANNED && n++ < room)
            copies[n - 1] =
                (copied_block){.base = pool->arenas[0]->base,
                               .held = (size_t)pool->arenas[0]->held.current,
                               .address = b->address,
                               .bytes = b->bytes,
                               .requested = b->requested};
    }
    return n;
}

static void append_block(PyObject **list, const copied_block *b)
{
    if (b->bytes)
        ptac_append(list,
                    Py_BuildValue("kkNkkkkN", b->base, b->held,
                                  PyBool_FromLong(b->is_small), b->stream, b->address,
                                  b->bytes, b->requested, PyBool_FromLong(b->is_free)));
}

/* Sorted, and without a gap: between blocks a plan's region has nothing in use. */
static PyObject *list_blocks(const copied_block *copies, size_t n)
{
    PyObject *list = PyList_New(0);
    uintptr_t at = 0;

    for (size_t i = 0; list && i < n; i++) {
        copied_block gap = copies[i];

        gap.address = i > 0 && copies[i - 1].base == gap.base ? at : gap.base;
        gap.bytes = copies[i].address - gap.address;
        gap.requested = 0;
        gap.is_free = true;
        append_block(&list, &gap);
        append_block(&list, &copies[i]);
        at = copies[i].address + copies[i].bytes;
    }
    return list;
}

/*
 * pool_blocks(device) -> [(arena's base, bytes it holds, is small, stream, address,
 * bytes, requested, is free)] by address within an arena, from its base on
 */
OF_POOL(pool_blocks)
{
    PTAC_FREED copied_block *copies = NULL;
    size_t n = 0, room = 0;

    while (pool && (room == 0 || n > room)) {
        PyMem_Free(copies);
        room = 2 * n + 64;
        copies = PyMem_Malloc(room * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();

        PTAC_LOCKED(&pool->lock);
        ptac_pool_settle(pool);
        n = copy_blocks(pool, copies, room);
    }
    if (n)
        qsort(copies, n, sizeof *copies, by_address);
    return list_blocks(copies, n);
}

/* pool_history(device) -> [(event, address, bytes, stream, ns)], the oldest first */
OF_POOL(pool_history)
{
    static const char *const names[] = {
#define X(name, text) text,
        PTAC_EVENTS(X)
#undef X
    };
    PTAC_FREED ptac_event *copies = NULL;
    size_t n = 0, n_slots = 0;
    PyObject *list;

    if (pool) {
        PTAC_LOCKED(&pool->lock);
        n_slots = pool->history.n_slots;
    }
    if (n_slots) {
        copies = PyMem_Malloc(n_slots * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();

        PTAC_LOCKED(&pool->lock);
        n = ptac_history_copy(&pool->history, copies, n_slots);
    }
    list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++)
        ptac_append(&list,
                    Py_BuildValue("skkkl", names[copies[i].kind], copies[i].address,
                                  copies[i].bytes, copies[i].stream, copies[i].t_ns));
    return list;
}
