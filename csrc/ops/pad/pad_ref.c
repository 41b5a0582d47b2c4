/*
 * pad_ref.c - padding by definition, and its shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/pad/pad.h"

#include <string.h>

enum {
    NARROW = 32, /* elements of a row of y */
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_pad *p = call->params;

    shape->kind = p->axes[2].padded >= NARROW;
    shape->work = p->planes * ptac_pad_rows(p, true) * p->axes[2].padded;
    return PTAC_TAKE;
}

PTAC_SHAPES(CONSTANT_PAD_ND, classify, "narrow", "wide")
PTAC_SHAPES(REFLECTION_PAD, classify, "narrow", "wide")
PTAC_SHAPES(REFLECTION_PAD_BACKWARD, classify, "narrow", "wide")
PTAC_SHAPES(REPLICATION_PAD, classify, "narrow", "wide")
PTAC_SHAPES(REPLICATION_PAD_BACKWARD, classify, "narrow", "wide")

ptac_reason ptac_pad_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

/* The row of x that is the index-th of all of y's; negative: none. */
static int64_t row_of_x(const ptac_pad *p, int64_t index, ptac_pad_source_fn *source)
{
    const ptac_pad_axis *d = &p->axes[0], *h = &p->axes[1];
    const int64_t from_d = source(d, index / h->padded % d->padded);
    const int64_t from_h = source(h, index % h->padded);

    if (from_d < 0 || from_h < 0)
        return -1;
    return (index / h->padded / d->padded * d->size + from_d) * h->size + from_h;
}

static void pad_rows(const ptac_call *call, int64_t begin, int64_t end,
                     ptac_pad_source_fn *source)
{
    const ptac_pad *p = call->params;
    const ptac_pad_axis *w = &p->axes[2];
    const float *x = call->inputs[0].data;
    float *y = (float *)call->outputs[0].data + begin * w->padded;

    for (int64_t i = begin; i < end; i++) {
        const int64_t row = row_of_x(p, i, source);

        for (int64_t j = 0; j < w->padded; j++) {
            const int64_t from = row < 0 ? -1 : source(w, j);

            *y++ = from < 0 ? p->value : x[row * w->size + from];
        }
    }
}

static void add_planes(const ptac_call *call, int64_t begin, int64_t end,
                       ptac_pad_source_fn *source)
{
    const ptac_pad *p = call->params;
    const ptac_pad_axis *w = &p->axes[2];
    const int64_t rows = ptac_pad_rows(p, true);
    const int64_t plane = ptac_pad_rows(p, false) * w->size;
    const float *grad_y =
        (const float *)call->inputs[0].data + begin * rows * w->padded;
    float *grad_x = call->outputs[0].data;

    memset(grad_x + begin * plane, 0, (size_t)((end - begin) * plane) * sizeof(float));
    for (int64_t i = begin * rows; i < end * rows; i++) {
        float *to = grad_x + row_of_x(p, i, source) * w->size;

        for (int64_t j = 0; j < w->padded; j++)
            to[source(w, j)] += *grad_y++;
    }
}

#define DEFINE_ROW(OP, name, source, work, share)                                      \
    static void name(int64_t begin, int64_t end, void *call)                           \
    {                                                                                  \
        work(call, begin, end, source);                                                \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return share(call, name);                                                      \
    }                                                                                  \
    PTAC_ROW(OP, "scalar", PTAC_EXACT, 0, ptac_pad_accepts, run_##name)

DEFINE_ROW(CONSTANT_PAD_ND, constant, ptac_pad_constant, pad_rows, ptac_pad_share_rows)
DEFINE_ROW(REFLECTION_PAD, reflection, ptac_pad_reflected, pad_rows,
           ptac_pad_share_rows)
DEFINE_ROW(REPLICATION_PAD, replication, ptac_pad_replicated, pad_rows,
           ptac_pad_share_rows)
DEFINE_ROW(REFLECTION_PAD_BACKWARD, reflection_backward, ptac_pad_reflected, add_planes,
           ptac_pad_share_planes)
DEFINE_ROW(REPLICATION_PAD_BACKWARD, replication_backward, ptac_pad_replicated,
           add_planes, ptac_pad_share_planes)
