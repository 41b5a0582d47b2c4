/*
 * copy_ref.c - copies by definition, and their shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/copy/copy.h"

#include <string.h>

enum {
    DENSE,
    OTHER,
    SHORT_RUNS,
    RUNS,
    LONG_RUNS,
    TURNED,
    FROM_NARROW,
    TO_NARROW,
};

/* Planes with a narrow side gain by their wide one, and in order. */
static int narrow_kind(const ptac_copy *p, bool of_to)
{
    const int rows = p->n_dims - 1, columns = rows - 1;
    const int64_t wide = p->sizes[of_to ? columns : rows];
    const bool has_gaps = of_to && p->to[columns] != p->sizes[rows] * p->bytes;

    return wide < 32 || has_gaps ? OTHER : of_to ? TO_NARROW : FROM_NARROW;
}

/* Runs differ by their bytes, planes by their narrow side. */
static int kind_of(const ptac_copy *p)
{
    const int last = p->n_dims - 1;
    const int64_t run = p->sizes[last] * p->bytes;

    switch (p->way) {
    case PTAC_COPY_DENSE:
        return DENSE;
    case PTAC_COPY_RUNS:
        return run < 128 ? SHORT_RUNS : run < 1024 ? RUNS : LONG_RUNS;
    case PTAC_COPY_TURNED:
        return ptac_copy_is_narrow(p, last)       ? narrow_kind(p, true)
               : ptac_copy_is_narrow(p, last - 1) ? narrow_kind(p, false)
                                                  : TURNED;
    default:
        return OTHER;
    }
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_copy *p = call->params;

    shape->kind = kind_of(p);
    shape->work = p->n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(COPY, classify, "dense", "other", "short_runs", "runs", "long_runs",
            "turned", "from_narrow", "to_narrow")

ptac_reason ptac_copy_accepts(const ptac_call *call)
{
    const ptac_copy *p = call->params;

    return p->way == PTAC_COPY_RUNS || p->way == PTAC_COPY_TURNED ? PTAC_TAKE
                                                                  : PTAC_LAYOUT;
}

/* Turns [begin, end) of all loops but the last. */
static void copy(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_copy *p = call->params;
    const int last = p->n_dims - 1;
    ptac_copy_place place = ptac_copy_seek(p, 1, begin);

    for (int64_t i = begin; i < end; i++, ptac_copy_step(p, &place)) {
        char *to = (char *)call->outputs[0].data + place.to;
        const char *from = (const char *)call->inputs[0].data + place.from;

        for (int64_t j = 0; j < p->sizes[last]; j++)
            memcpy(to + j * p->to[last], from + j * p->from[last], (size_t)p->bytes);
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_copy *p = call->params;
    const int64_t turns = ptac_copy_turns(p, 1);

    ptac_parallel_for(0, turns, ptac_copy_grain(p, turns), copy, (void *)call);
    return PTAC_OK;
}

PTAC_ROW(COPY, "scalar", PTAC_EXACT, 0, ptac_copy_accepts, run)
