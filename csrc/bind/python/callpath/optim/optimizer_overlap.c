/*
 * optimizer_overlap.c - tensors of a step that share memory.
 */
#include "bind/python/callpath/optim/optimizer_args.h"

#include <stdlib.h>

static int by_address(const void *left, const void *right)
{
    const ptac_step_item *a = *(const ptac_step_item *const *)left;
    const ptac_step_item *b = *(const ptac_step_item *const *)right;

    return (a->param > b->param) - (a->param < b->param);
}

/* Bytes of a parameter, and of its gradient. */
static size_t size_of(const ptac_optimizer_args *g, const ptac_step_item *item)
{
    static const size_t sizes[PTAC_N_DTYPES] = {
        [PTAC_F32] = 4, [PTAC_F64] = 8, [PTAC_F16] = 2, [PTAC_BF16] = 2};

    return (size_t)item->n * sizes[g->dtype];
}

ptac_verdict ptac_optimizer_args_overlap(const ptac_optimizer_args *g)
{
    PTAC_FREED const ptac_step_item **sorted = NULL;
    ptac_verdict result = PTAC_TAKE;

    if (g->device == PTAC_ON_CPU &&
        (g->n_elements <= PTAC_STEP_GRAIN || ptac_the_host.n_threads() == 1))
        return PTAC_TAKE;
    sorted = PyMem_Malloc((size_t)g->n_items * sizeof *sorted);
    if (!sorted) {
        PyErr_NoMemory();
        return PTAC_RAISED;
    }
    for (Py_ssize_t i = 0; i < g->n_items; i++)
        sorted[i] = &g->items[i];
    qsort(sorted, (size_t)g->n_items, sizeof *sorted, by_address);
    for (Py_ssize_t i = 1; i < g->n_items; i++)
        if ((char *)sorted[i - 1]->param + size_of(g, sorted[i - 1]) >
            (char *)sorted[i]->param)
            result = PTAC_OVERLAP;
    return result;
}

/* Where an address stands in an open hash table, or would stand: there is NULL. */
static const void **place(const void **table, size_t mask, const void *data)
{
    size_t at = ((uintptr_t)data >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32;

    at &= mask;
    while (table[at] && table[at] != data)
        at = (at + 1) & mask;
    return &table[at];
}

/* Put all that is written into the table; false when something is there already. */
static bool note_written(const ptac_optimizer_args *g, const void **table, size_t mask)
{
    for (Py_ssize_t i = 0; i < g->n_written; i++) {
        const void *data = g->written[i].data;
        const void **at = data ? place(table, mask, data) : NULL;

        /* A tensor without elements has no address of its own. */
        if (!at)
            continue;
        if (*at)
            return false;
        *at = data;
    }
    return true;
}

/* A gradient begins where something is written, or lies over its own parameter. */
static bool reads_written(const ptac_optimizer_args *g, const void **table, size_t mask)
{
    for (Py_ssize_t i = 0; i < g->n_items; i++) {
        const ptac_step_item *item = &g->items[i];
        const uintptr_t param = (uintptr_t)item->param, grad = (uintptr_t)item->grad;
        const size_t apart = param < grad ? grad - param : param - grad;

        if (item->n && (apart < size_of(g, item) || *place(table, mask, item->grad)))
            return true;
    }
    return false;
}

ptac_verdict ptac_optimizer_args_repeat(const ptac_optimizer_args *gathered, int n)
{
    enum { SMALL = 512 };
    const void *small[SMALL] = {NULL}, **table = small;
    ptac_verdict result = PTAC_TAKE;
    size_t n_written = 0, size = SMALL;

    for (int i = 0; i < n; i++)
        n_written += (size_t)gathered[i].n_written;
    while (size < 2 * n_written)
        size *= 2;
    if (size > SMALL)
        table = PyMem_Calloc(size, sizeof *table);
    if (!table) {
        PyErr_NoMemory();
        return PTAC_RAISED;
    }
    for (int i = 0; i < n && !result; i++)
        if (!note_written(&gathered[i], table, size - 1))
            result = PTAC_OVERLAP;
    for (int i = 0; i < n && !result; i++)
        if (reads_written(&gathered[i], table, size - 1))
            result = PTAC_OVERLAP;
    if (table != small)
        PyMem_Free(table);
    return result;
}
