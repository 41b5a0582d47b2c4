/*
 * index_width.c - indices in as few bytes as hold all of them.
 */
#include "core/host.h"
#include "ops/pack/pack.h"

#include <stdatomic.h>

enum {
    GRAIN = 1 << 15, /* elements that are worth a thread */
};

typedef struct job {
    const int64_t *x;
    const void *narrow;
    void *out;
    int width;
    atomic_ullong seen; /* all elements, or-ed together */
} job;

static void look(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    uint64_t seen = 0;

    for (int64_t i = begin; i < end; i++)
        seen |= (uint64_t)j->x[i];
    atomic_fetch_or_explicit(&j->seen, seen, memory_order_relaxed);
}

int ptac_pack_index_width(const int64_t *x, int64_t n)
{
    job j = {.x = x};

    ptac_parallel_for(0, n, GRAIN, look, &j);

    const uint64_t seen = atomic_load_explicit(&j.seen, memory_order_relaxed);

    return seen <= UINT8_MAX ? 1 : seen <= UINT16_MAX ? 2 : seen <= UINT32_MAX ? 4 : 8;
}

static void narrow_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    if (j->width == 1)
        for (int64_t i = begin; i < end; i++)
            ((uint8_t *)j->out)[i] = (uint8_t)j->x[i];
    else if (j->width == 2)
        for (int64_t i = begin; i < end; i++)
            ((uint16_t *)j->out)[i] = (uint16_t)j->x[i];
    else
        for (int64_t i = begin; i < end; i++)
            ((uint32_t *)j->out)[i] = (uint32_t)j->x[i];
}

void ptac_pack_indices(const int64_t *x, int64_t n, int width, void *narrow)
{
    job j = {.x = x, .out = narrow, .width = width};

    ptac_parallel_for(0, n, GRAIN, narrow_range, &j);
}

static void widen_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    int64_t *x = j->out;

    if (j->width == 1)
        for (int64_t i = begin; i < end; i++)
            x[i] = ((const uint8_t *)j->narrow)[i];
    else if (j->width == 2)
        for (int64_t i = begin; i < end; i++)
            x[i] = ((const uint16_t *)j->narrow)[i];
    else
        for (int64_t i = begin; i < end; i++)
            x[i] = ((const uint32_t *)j->narrow)[i];
}

void ptac_unpack_indices(const void *narrow, int64_t n, int width, int64_t *x)
{
    job j = {.narrow = narrow, .out = x, .width = width};

    ptac_parallel_for(0, n, GRAIN, widen_range, &j);
}
