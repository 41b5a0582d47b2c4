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
    const void *x;
    void *out;
    int width;
    atomic_ullong seen; /* all elements, or-ed together */
} job;

static void look(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    uint64_t seen = 0;

    for (int64_t i = begin; i < end; i++)
        seen |= ((const uint64_t *)j->x)[i];
    atomic_fetch_or_explicit(&j->seen, seen, memory_order_relaxed);
}

int ptac_pack_index_width(const int64_t *x, int64_t n)
{
    job j = {.x = x};

    ptac_parallel_for(0, n, GRAIN, look, &j);

    const uint64_t seen = atomic_load_explicit(&j.seen, memory_order_relaxed);

    return seen <= UINT8_MAX ? 1 : seen <= UINT16_MAX ? 2 : seen <= UINT32_MAX ? 4 : 8;
}

/* Elements [begin, end) of a job as another type. */
#define COPY(to, from)                                                                 \
    for (int64_t i = begin; i < end; i++)                                              \
    ((to *)j->out)[i] = (to)((const from *)j->x)[i]

static void narrow_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    if (j->width == 1)
        COPY(uint8_t, int64_t);
    else if (j->width == 2)
        COPY(uint16_t, int64_t);
    else
        COPY(uint32_t, int64_t);
}

void ptac_pack_indices(const int64_t *x, int64_t n, int width, void *narrow)
{
    job j = {.x = x, .out = narrow, .width = width};

    ptac_parallel_for(0, n, GRAIN, narrow_range, &j);
}

static void widen_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    if (j->width == 1)
        COPY(int64_t, uint8_t);
    else if (j->width == 2)
        COPY(int64_t, uint16_t);
    else
        COPY(int64_t, uint32_t);
}

void ptac_unpack_indices(const void *narrow, int64_t n, int width, int64_t *x)
{
    job j = {.x = narrow, .out = x, .width = width};

    ptac_parallel_for(0, n, GRAIN, widen_range, &j);
}
