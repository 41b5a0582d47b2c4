/*
 * pad.h - images with pixels put around them, or taken away. Level exact.
 *
 *   constant_pad_nd            x -> y, x with a value around it, or cropped
 *   reflection_pad             with what lies as far inside the edge
 *   replication_pad            with the edge itself
 *   reflection_pad_backward    grad_y -> grad_x; where several pixels of y are one of
 *   replication_pad_backward   x, their gradients add up in the order of y
 *
 * Tensors are of float32 and dense. Three axes of a plane may be padded, of which the
 * last is the fastest; several of torch's may be one of these, as channels_last has
 * pixels and their channels beside each other.
 */
#ifndef PTAC_OPS_PAD_PAD_H
#define PTAC_OPS_PAD_PAD_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_PAD_AXES = 3,
};

typedef struct ptac_pad_axis {
    int64_t size, padded; /* of x, of y */
    int64_t front;        /* elements of y before the first of x; negative: left out */
} ptac_pad_axis;

typedef struct ptac_pad {
    ptac_pad_axis axes[PTAC_PAD_AXES];
    int64_t planes;
    float value; /* of constant_pad_nd */
} ptac_pad;

/* The element of x that the i-th of y is; negative: none, but a constant. */
typedef int64_t ptac_pad_source_fn(const ptac_pad_axis *axis, int64_t i);

static inline int64_t ptac_pad_constant(const ptac_pad_axis *axis, int64_t i)
{
    i -= axis->front;
    return i < axis->size ? i : -1;
}

static inline int64_t ptac_pad_reflected(const ptac_pad_axis *axis, int64_t i)
{
    i -= axis->front;
    if (i < 0)
        return -i;
    return i < axis->size ? i : 2 * (axis->size - 1) - i;
}

static inline int64_t ptac_pad_replicated(const ptac_pad_axis *axis, int64_t i)
{
    i -= axis->front;
    return i < 0 ? 0 : ptac_least(i, axis->size - 1);
}

/* A row of y: elements before those of x, and of x from first on n. */
typedef struct ptac_pad_row {
    int64_t before, first, n;
} ptac_pad_row;

static inline ptac_pad_row ptac_pad_row_of(const ptac_pad_axis *w)
{
    ptac_pad_row row = {.before = w->front > 0 ? w->front : 0,
                        .first = w->front < 0 ? -w->front : 0};

    row.n = ptac_least(w->size - row.first, w->padded - row.before);
    return row;
}

/* The rows of one plane of x, or of y. */
static inline int64_t ptac_pad_rows(const ptac_pad *p, bool of_y)
{
    return of_y ? p->axes[0].padded * p->axes[1].padded
                : p->axes[0].size * p->axes[1].size;
}

ptac_reason ptac_pad_accepts(const ptac_call *call);

/* Threads share the rows of y, and for gradients the planes. */
static inline ptac_status ptac_pad_share_rows(const ptac_call *call, ptac_range_fn body)
{
    const ptac_pad *p = call->params;

    ptac_parallel_for(0, p->planes * ptac_pad_rows(p, true),
                      16384 / p->axes[2].padded + 1, body, (void *)call);
    return PTAC_OK;
}

static inline ptac_status ptac_pad_share_planes(const ptac_call *call,
                                                ptac_range_fn body)
{
    const ptac_pad *p = call->params;

    ptac_parallel_for(0, p->planes,
                      16384 / (ptac_pad_rows(p, true) * p->axes[2].padded) + 1, body,
                      (void *)call);
    return PTAC_OK;
}

#endif
