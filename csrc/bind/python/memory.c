/*
 * memory.c - the memory pool's switch, statistics and snapshots, for Python.
 */
#include "bind/python/pybind.h"

#include "bind/torch/cpu_allocator.h"
#include "mem/limits.h"
#include "mem/replay.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* pool_enable(route, policy, cap, reserve, history, idle_s, fill): None, or trouble. */
static PyObject *pool_enable(PyObject *self, PyObject *args)
{
    unsigned long long cap, reserve, history;
    long long idle_s;
    const char *way, *policy, *trouble;
    int fill;

    (void)self;
    if (!PyArg_ParseTuple(args, "ssKKKLi", &way, &policy, &cap, &reserve, &history,
                          &idle_s, &fill))
        return NULL;

    const ptac_cpu_pool_options options = {
        .policy = ptac_policy_find(policy),
        .cap = cap,
        .reserve_bytes = reserve,
        .n_history = history,
        .idle_s = idle_s,
        .fill = (ptac_fill)fill,
    };

    const ptac_cpu_route *route = ptac_cpu_route_find(way);

    if (!options.policy || !route)
        return PyErr_Format(PyExc_ValueError, "there is no policy %s, or no route %s",
                            policy, way);
    Py_BEGIN_ALLOW_THREADS
    trouble = ptac_cpu_allocator_enable(route, &options);
    Py_END_ALLOW_THREADS
    return trouble ? PyUnicode_FromString(trouble) : Py_NewRef(Py_None);
}

static PyObject *pool_disable(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    ptac_cpu_allocator_disable();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* pool_routes() -> names of the ways to torch's allocator, the best first */
static PyObject *pool_routes(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);

    (void)self;
    (void)unused;
    for (int i = 0; list && ptac_cpu_route_at(i); i++)
        if (ptac_append_stolen(list, PyUnicode_FromString(ptac_cpu_route_at(i)->name)) <
            0)
            Py_CLEAR(list);
    return list;
}

/*
 * malloc_keeps(whether): glibc's malloc maps nothing for itself and gives nothing back,
 * or does as it would by default; whether it can be told.
 */
static PyObject *malloc_keeps(PyObject *self, PyObject *is_wanted)
{
    const bool keeps = PyObject_IsTrue(is_wanted) == 1;
    bool is_done = false;

    (void)self;
#ifdef __GLIBC__
    is_done = mallopt(M_MMAP_MAX, keeps ? 0 : 64 << 10) &&
              mallopt(M_TRIM_THRESHOLD, keeps ? -1 : 128 << 10);
    if (!keeps)
        malloc_trim(0);
#endif
    return PyBool_FromLong(is_done);
}

/* pool_state() -> ("off" | "on" | "draining", blocks still in use, was overtaken) */
static PyObject *pool_state(PyObject *self, PyObject *unused)
{
    static const char *const names[] = {"off", "on", "draining"};
    const int64_t n = ptac_cpu_pool_draining();

    (void)self;
    (void)unused;
    return Py_BuildValue("sLi", names[ptac_cpu_allocator_state()], (long long)n,
                         (int)ptac_cpu_allocator_was_overtaken());
}

static PyObject *slot_values(const got_slots *slots)
{
    PyObject *list = PyList_New(0);

    for (int i = 0; list && i < slots->n; i++)
        if (ptac_append_stolen(list, PyLong_FromSize_t(slots->found[i])) < 0)
            Py_CLEAR(list);
    return list;
}

/* pool_slots() -> what libc10's imports of posix_memalign and of free lead to */
static PyObject *pool_slots(PyObject *self, PyObject *unused)
{
    got_slots memalign = {0}, frees = {0};

    (void)self;
    (void)unused;
    ptac_cpu_allocator_slots(&memalign, &frees);
    return Py_BuildValue("NN", slot_values(&memalign), slot_values(&frees));
}

static PyObject *pool_owns(PyObject *self, PyObject *address)
{
    void *memory = PyLong_AsVoidPtr(address);

    (void)self;
    if (!memory && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(ptac_cpu_pool_owns(memory));
}

static PyObject *pool_trim(PyObject *self, PyObject *unused)
{
    size_t bytes;

    (void)self;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    bytes = ptac_cpu_pool_trim();
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(bytes);
}

/* pool_forget(): the probe of whoever switched the pool on. */
static PyObject *pool_forget(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    ptac_cpu_pool_forget();
    Py_RETURN_NONE;
}

/* pool_plan_steps(whether) */
static PyObject *pool_plan_steps(PyObject *self, PyObject *is_wanted)
{
    (void)self;
    ptac_cpu_pool_plan_steps(PyObject_IsTrue(is_wanted) == 1);
    Py_RETURN_NONE;
}

static PyObject *pool_end_step(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    ptac_cpu_pool_end_step();
    Py_RETURN_NONE;
}

static PyObject *pool_policies(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);

    (void)self;
    (void)unused;
    for (int i = 0; list && ptac_policy_at(i); i++)
        if (ptac_append_stolen(list, PyUnicode_FromString(ptac_policy_at(i)->name)) < 0)
            Py_CLEAR(list);
    return list;
}

static int put(PyObject *dict, const char *key, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    const int status = number ? PyDict_SetItemString(dict, key, number) : -1;

    Py_XDECREF(number);
    return status;
}

static int put_stat(PyObject *dict, const char *name, const char *class,
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
        snprintf(key, sizeof key, "%s%s%s.%s", name, *class ? "." : "", class,
                 parts[i].name);
        if (put(dict, key, parts[i].value) < 0)
            return -1;
    }
    return 0;
}

int ptac_put_mem_stats(PyObject *dict, const ptac_mem_stats *s)
{
    static const char *const classes[PTAC_N_CLASSES] = {
        [PTAC_ALL] = "all", [PTAC_LARGE] = "large_pool", [PTAC_SMALL] = "small_pool"};

    for (int c = 0; c < PTAC_N_CLASSES; c++) {
#define X(name)                                                                        \
    if (put_stat(dict, #name, classes[c], &s->name[c]) < 0)                            \
        return -1;
        PTAC_CLASS_STATS(X)
#undef X
    }
#define X(name)                                                                        \
    if (put(dict, #name, s->name) < 0)                                                 \
        return -1;
    PTAC_PLAIN_STATS(X)
#undef X
#define X(name)                                                                        \
    if (put(dict, "ptac." #name, s->name) < 0)                                         \
        return -1;
    PTAC_OWN_STATS(X)
#undef X
    return put_stat(dict, "ptac.arena_bytes", "", &s->arena_bytes);
}

static PyObject *pool_stats(PyObject *self, PyObject *unused)
{
    PyObject *dict = PyDict_New();
    ptac_mem_stats stats;

    (void)self;
    (void)unused;
    ptac_pool_stats(ptac_cpu_pool(), &stats);
    if (dict && ptac_put_mem_stats(dict, &stats) < 0)
        Py_CLEAR(dict);
    return dict;
}

static PyObject *pool_reset_peaks(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    ptac_pool_reset_peaks(ptac_cpu_pool());
    Py_RETURN_NONE;
}

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

static int append_block(PyObject *list, const copied_block *block)
{
    return ptac_append_stolen(
        list, Py_BuildValue("KKKN", (unsigned long long)block->address,
                            (unsigned long long)block->bytes,
                            (unsigned long long)block->requested,
                            PyBool_FromLong(block->flags & PTAC_BLOCK_FREE)));
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

        if ((gap.bytes && append_block(list, &gap) < 0) ||
            (i < n && append_block(list, &blocks[i]) < 0))
            Py_CLEAR(list);
        if (i < n)
            at = blocks[i].address + blocks[i].bytes;
    }
    return list;
}

/* pool_blocks() -> (base, bytes held, [(address, bytes, requested, is free)]) */
static PyObject *pool_blocks(PyObject *self, PyObject *unused)
{
    ptac_pool *pool = ptac_cpu_pool();
    copied_block *copies = NULL;
    size_t n = 0, room = 0, held = 0;
    uintptr_t base = 0, top = 0;
    PyObject *list;

    (void)self;
    (void)unused;
    for (bool is_done = false; !is_done;) {
        free(copies);
        room = 2 * n + 64;
        n = 0;
        copies = malloc(room * sizeof *copies);
        if (!copies)
            return PyErr_NoMemory();
        ptac_lock_take(&pool->lock);
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
    return list ? Py_BuildValue("KKN", (unsigned long long)base,
                                (unsigned long long)held, list)
                : NULL;
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
        if (ptac_append_stolen(
                list,
                Py_BuildValue("sKKKL", ptac_event_name((ptac_event_kind)copies[i].kind),
                              (unsigned long long)copies[i].address,
                              (unsigned long long)copies[i].bytes,
                              (unsigned long long)copies[i].stream,
                              (long long)copies[i].t_ns)) < 0)
            Py_CLEAR(list);
    free(copies);
    return list;
}

static PyObject *pool_history(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return ptac_history_list(ptac_cpu_pool());
}

/*
 * pool_replay(policy, granule, least, [(bytes, n)]) -> peaks: live, arena, planned; see
 * mem/replay.h.
 */
static PyObject *pool_replay(PyObject *self, PyObject *args)
{
    unsigned long long granule, least;
    const char *name;
    PyObject *list, *result = NULL;
    ptac_replay_result found;

    (void)self;
    if (!PyArg_ParseTuple(args, "sKKO!", &name, &granule, &least, &PyList_Type, &list))
        return NULL;

    const ptac_policy *policy = ptac_policy_find(name);
    const Py_ssize_t n = PyList_Size(list);
    ptac_trace_step *steps = calloc((size_t)n + 1, sizeof *steps);

    if (!steps)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long bytes, number;

        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "KK", &bytes, &number))
            goto done;
        steps[i] = (ptac_trace_step){.bytes = bytes, .n = number};
    }
    if (!policy || granule == 0 || granule & (granule - 1))
        PyErr_SetString(PyExc_ValueError, "no such policy, or no power of two");
    else if (!ptac_replay(policy, granule, least, steps, (size_t)n, &found))
        PyErr_SetString(PyExc_ValueError, "the trace frees what is not in use");
    else
        result = Py_BuildValue("KKK", (unsigned long long)found.peak_live,
                               (unsigned long long)found.peak_arena,
                               (unsigned long long)found.planned);
done:
    free(steps);
    return result;
}

/* memory_limit() -> bytes that the control group may have, or None */
static PyObject *memory_limit(PyObject *self, PyObject *unused)
{
    const size_t limit = ptac_cgroup_limit();

    (void)self;
    (void)unused;
    return limit == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(limit);
}

/* pool_pair_ns(bytes, n): nanoseconds that an alloc and a free of it take. */
static PyObject *pool_pair_ns(PyObject *self, PyObject *args)
{
    unsigned long long bytes;
    long n;
    struct timespec from, to;
    bool is_refused;

    (void)self;
    if (!PyArg_ParseTuple(args, "Kl", &bytes, &n))
        return NULL;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; i < n; i++) {
        void *memory = ptac_cpu_pool_alloc(bytes, &is_refused);

        if (!memory)
            return PyErr_NoMemory();
        ptac_cpu_pool_free(memory);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    return PyFloat_FromDouble(((double)(to.tv_sec - from.tv_sec) * 1e9 +
                               (double)(to.tv_nsec - from.tv_nsec)) /
                              (double)(n > 0 ? n : 1));
}

PyMethodDef ptac_memory_methods[] = {
    {"pool_routes", pool_routes, METH_NOARGS, NULL},
    {"malloc_keeps", malloc_keeps, METH_O, NULL},
    {"pool_enable", pool_enable, METH_VARARGS, NULL},
    {"pool_disable", pool_disable, METH_NOARGS, NULL},
    {"pool_state", pool_state, METH_NOARGS, NULL},
    {"pool_slots", pool_slots, METH_NOARGS, NULL},
    {"pool_owns", pool_owns, METH_O, NULL},
    {"pool_trim", pool_trim, METH_NOARGS, NULL},
    {"pool_forget", pool_forget, METH_NOARGS, NULL},
    {"pool_plan_steps", pool_plan_steps, METH_O, NULL},
    {"pool_end_step", pool_end_step, METH_NOARGS, NULL},
    {"pool_policies", pool_policies, METH_NOARGS, NULL},
    {"pool_stats", pool_stats, METH_NOARGS, NULL},
    {"pool_reset_peaks", pool_reset_peaks, METH_NOARGS, NULL},
    {"pool_blocks", pool_blocks, METH_NOARGS, NULL},
    {"pool_history", pool_history, METH_NOARGS, NULL},
    {"pool_replay", pool_replay, METH_VARARGS, NULL},
    {"memory_limit", memory_limit, METH_NOARGS, NULL},
    {"pool_pair_ns", pool_pair_ns, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
