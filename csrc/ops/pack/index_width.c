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
#define DEFINE_COPY(name, to, from)                                                    \
    static void name(int64_t begin, int64_t end, void *context)                        \
    {                                                                                  \
        const job *j = context;                                                        \
                                                                                       \
        for (int64_t i = begin; i < end; i++)                                          \
            ((to *)j->out)[i] = (to)((const from *)j->x)[i];                           \
    }
DEFINE_COPY(narrow_1, uint8_t, int64_t)
DEFINE_COPY(narrow_2, uint16_t, int64_t)
DEFINE_COPY(narrow_4, uint32_t, int64_t)
DEFINE_COPY(widen_1, int64_t, uint8_t)
DEFINE_COPY(widen_2, int64_t, uint16_t)
DEFINE_COPY(widen_4, int64_t, uint32_t)

static const ptac_range_fn narrow_to[] = {
    [1] = narrow_1, [2] = narrow_2, [4] = narrow_4};
static const ptac_range_fn widen_from[] = {[1] = widen_1, [2] = widen_2, [4] = widen_4};

void ptac_pack_indices(const int64_t *x, int64_t n, int width, void *narrow)
{
    job j = {.x = x, .out = narrow};

    ptac_parallel_for(0, n, GRAIN, narrow_to[width], &j);
}

void ptac_unpack_indices(const void *narrow, int64_t n, int width, int64_t *x)
{
    job j = {.x = narrow, .out = x};

    ptac_parallel_for(0, n, GRAIN, widen_from[width], &j);
}
