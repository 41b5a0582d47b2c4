/*
 * memory_trace.c - blocks and events of the memory pool.
 */
#include "bind/python/module/pybind.h"

#include "mem/cpu/cpu_pool.h"

#include <stdlib.h>

/* One record of a snapshot, copied under the lock: no object is made there. */
typedef struct copied_block {
    uintptr_t address;
    size_t bytes, requested;
    uint32_t flags;
} copied_block;

static int by_address(const void *a, const void *b)
{
    const copied_block *x = a, *y = b;

    return x->address < y->address ? -1 : x->address > y->address;
}

/*
 * At most room blocks, in any order; their number may be larger. A plan's region is in
 * no table and left out, and its blocks that are in use are no neighbours of others.
 */
static size_t copy_blocks(const ptac_pool *pool, copied_block *copies, size_t room)
{
    size_t n = 0;

    for (const ptac_block *b = pool->arenas[0]->last; b; b = b->below) {
        const bool is_free = b->flags & PTAC_BLOCK_FREE;

        if (!is_free && ptac_table_find(&pool->used, b->address) != b)
            continue;
        if (n++ < room)
            copies[n - 1] = (copied_block){b->address, b->bytes,
                                           is_free ? 0 : b->requested, b->flags};
    }
    for (size_t i = 0; i < pool->used.n_slots; i++) {
        const ptac_block *b = pool->used.slots[i];

        if (b && b->flags & PTAC_BLOCK_PLANNED && n++ < room)
            copies[n - 1] =
                (copied_block){b->address, b->bytes, b->requested, b->flags};
    }
    return n;
}

static void append_block(PyObject **list, const copied_block *b)
{
    ptac_append(list, Py_BuildValue("kkkN", b->address, b->bytes, b->requested,
                                    PyBool_FromLong(b->flags & PTAC_BLOCK_FREE)));
}

/* From base to top without a gap: between blocks a plan's region has nothing in use. */
static PyObject *list_blocks(const copied_block *blocks, size_t n, uintptr_t base,
                             uintptr_t top)
{
    PyObject *list = PyList_New(0);
    uintptr_t at = base;

    for (size_t i = 0; list && i <= n; i++) {
        const uintptr_t next = i < n ? blocks[i].address : top;
        const copied_block gap = {
            .address = at, .bytes = next - at, .flags = PTAC_BLOCK_FREE};

        if (gap.bytes)
            append_block(&list, &gap);
        if (i < n) {
            append_block(&list, &blocks[i]);
            at = blocks[i].address + blocks[i].bytes;
        }
    }
    return list;
}

/* pool_blocks() -> (base, bytes held, [(address, bytes, requested, is free)]) */
PTAC_NOARGS(pool_blocks)
{
    ptac_pool *pool = ptac_cpu_pool();
    copied_block *copies = NULL;
    size_t n = 0, room, held;
    uintptr_t base, top;
    PyObject *list;

    for (bool is_done = false; !is_done;) {
        free(copies);
        room = 2 * n + 64;
        n = held = 0;
        base = top = 0; /* the pool may have closed since the last round */
        copies = malloc(room * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();
        ptac_lock_take(&pool->lock);
        ptac_pool_settle(pool);
        if (pool->n_arenas > 0) {
            base = pool->arenas[0]->base;
            top = pool->arenas[0]->top;
            held = (size_t)pool->arenas[0]->held.current;
            n = copy_blocks(pool, copies, room);
        }
        ptac_lock_give(&pool->lock);
        is_done = n <= room;
    }
    qsort(copies, n, sizeof *copies, by_address);
    list = list_blocks(copies, n, base, top);
    free(copies);
    return Py_BuildValue("kkN", base, held, list);
}

/* [(event, address, bytes, stream, nanoseconds)], the oldest first */
PyObject *ptac_history_list(ptac_pool *pool)
{
    ptac_event *copies = NULL;
    size_t n = 0, n_slots;
    PyObject *list;

    ptac_lock_take(&pool->lock);
    n_slots = pool->history.n_slots;
    ptac_lock_give(&pool->lock);
    if (n_slots) {
        copies = malloc(n_slots * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();
        ptac_lock_take(&pool->lock);
        n = ptac_history_copy(&pool->history, copies, n_slots);
        ptac_lock_give(&pool->lock);
    }
    list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++)
        ptac_append(&list,
                    Py_BuildValue("skkkl",
                                  ptac_event_name((ptac_event_kind)copies[i].kind),
                                  copies[i].address, copies[i].bytes, copies[i].stream,
                                  copies[i].t_ns));
    free(copies);
    return list;
}

/* pool_history() -> as ptac_history_list() */
PTAC_NOARGS(pool_history)
{
    return ptac_history_list(ptac_cpu_pool());
}
