/*
 * pad_tpl.h - padding, a row at a time.
 *
 * Expects the words of ops/math/lanes.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 *
 * What lies between the paddings of a row is copied, or added, by vectors.
 */
#include "ops/pad/pad.h"

#include <string.h>

/* A row of y, and the row of x that it is, where there is one. */
typedef struct place {
    int64_t plane, d, h, from_d, from_h;
} place;

INLINE place place_of(const ptac_pad *p, int64_t row, ptac_pad_source_fn *source)
{
    const ptac_pad_axis *d = &p->axes[0], *h = &p->axes[1];
    place at = {.h = row % h->padded, .d = row / h->padded % d->padded};

    at.plane = row / h->padded / d->padded;
    at.from_d = source(d, at.d);
    at.from_h = source(h, at.h);
    return at;
}

INLINE int64_t row_of_x(const ptac_pad *p, const place *at)
{
    return (at->plane * p->axes[0].size + at->from_d) * p->axes[1].size + at->from_h;
}

/* The next row of y. */
INLINE void step(const ptac_pad *p, place *at, ptac_pad_source_fn *source)
{
    if (++at->h == p->axes[1].padded) {
        at->h = 0;
        if (++at->d == p->axes[0].padded) {
            at->d = 0;
            at->plane++;
        }
        at->from_d = source(&p->axes[0], at->d);
    }
    at->from_h = source(&p->axes[1], at->h);
}

INLINE void fill(float *to, int64_t n, vec value)
{
    FOR_LANES(i, m, 0, n, { v_store_first(to + i, value, m); });
}

INLINE void copy(const float *from, int64_t n, float *to)
{
    FOR_LANES(i, m, 0, n, { v_store_first(to + i, v_load_first(from + i, m), m); });
}

/*
 * In narrow rows an element at a time: vectors would wait for the single elements that
 * were stored before, and these for them.
 */
INLINE void add(const float *from, int64_t n, float *to)
{
    if (n < LANES) {
        for (int64_t i = 0; i < n; i++)
            to[i] += from[i];
        return;
    }
    FOR_LANES(i, m, 0, n, {
        const vec sum = v_add(v_load_first(to + i, m), v_load_first(from + i, m));

        v_store_first(to + i, sum, m);
    });
}

TARGET static void constant(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_pad *p = call->params;
    const ptac_pad_axis *w = &p->axes[2];
    const ptac_pad_row row = ptac_pad_row_of(w);
    const int64_t behind = w->padded - row.before - row.n;
    const vec value = v_set(p->value);
    const float *x = (const float *)call->inputs[0].data + row.first;
    float *y = (float *)call->outputs[0].data + begin * w->padded;
    place at = place_of(p, begin, ptac_pad_constant);

    for (int64_t i = begin; i < end; i++, y += w->padded) {
        if (at.from_d < 0 || at.from_h < 0) {
            fill(y, w->padded, value);
        } else {
            fill(y, row.before, value);
            copy(x + row_of_x(p, &at) * w->size, row.n, y + row.before);
            fill(y + row.before + row.n, behind, value);
        }
        step(p, &at, ptac_pad_constant);
    }
}

/* Rows of y that have some of x's elements in their paddings. */
INLINE void pad_rows(const ptac_call *call, int64_t begin, int64_t end,
                     ptac_pad_source_fn *source)
{
    const ptac_pad *p = call->params;
    const ptac_pad_axis *w = &p->axes[2];
    const int64_t before = w->front, behind = before + w->size;
    const float *x = call->inputs[0].data;
    float *y = (float *)call->outputs[0].data + begin * w->padded;
    place at = place_of(p, begin, source);

    for (int64_t i = begin; i < end; i++, y += w->padded) {
        const float *from = x + row_of_x(p, &at) * w->size;

        for (int64_t j = 0; j < before; j++)
            y[j] = from[source(w, j)];
        copy(from, w->size, y + before);
        for (int64_t j = behind; j < w->padded; j++)
            y[j] = from[source(w, j)];
        step(p, &at, source);
    }
}

INLINE void clear(float *to, int64_t n)
{
    if (n < LANES)
        for (int64_t i = 0; i < n; i++)
            to[i] = 0;
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

/* Whether the i-th element of y is the first that is this one of x. */
INLINE bool is_first(const ptac_pad_axis *axis, int64_t i, int64_t from, bool reflects)
{
    const int64_t reach = reflects ? axis->front : 0;

    if (from > reach || axis->front == 0 || (reflects && from == 0))
        return i == axis->front + from;
    return reflects ? i == axis->front - from : i == 0;
}

/* All gradients of a row of y, to what is there, in their order. */
INLINE void add_row(const ptac_pad_axis *w, const float *grad_y, float *grad_x,
                    ptac_pad_source_fn *source)
{
    const int64_t behind = w->front + w->size;

    for (int64_t j = 0; j < w->front; j++)
        grad_x[source(w, j)] += grad_y[j];
    add(grad_y + w->front, w->size, grad_x);
    for (int64_t j = behind; j < w->padded; j++)
        grad_x[source(w, j)] += grad_y[j];
}

INLINE void add_planes(const ptac_call *call, int64_t begin, int64_t end,
                       ptac_pad_source_fn *source, bool reflects)
{
    const ptac_pad *p = call->params;
    const ptac_pad_axis *w = &p->axes[2];
    const int64_t rows = ptac_pad_rows(p, true);
    const float *grad_y =
        (const float *)call->inputs[0].data + begin * rows * w->padded;
    float *grad_x = call->outputs[0].data;
    place at = place_of(p, begin * rows, source);

    for (int64_t i = begin * rows; i < end * rows; i++, grad_y += w->padded) {
        float *to = grad_x + row_of_x(p, &at) * w->size;

        if (is_first(&p->axes[0], at.d, at.from_d, reflects) &&
            is_first(&p->axes[1], at.h, at.from_h, reflects))
            clear(to, w->size);
        add_row(w, grad_y, to, source);
        step(p, &at, source);
    }
}

TARGET static void reflection(int64_t begin, int64_t end, void *call)
{
    pad_rows(call, begin, end, ptac_pad_reflected);
}

TARGET static void replication(int64_t begin, int64_t end, void *call)
{
    pad_rows(call, begin, end, ptac_pad_replicated);
}

TARGET static void reflection_backward(int64_t begin, int64_t end, void *call)
{
    add_planes(call, begin, end, ptac_pad_reflected, true);
}

TARGET static void replication_backward(int64_t begin, int64_t end, void *call)
{
    add_planes(call, begin, end, ptac_pad_replicated, false);
}

#define DEFINE_ROW(OP, name, share)                                                    \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return share(call, name);                                                      \
    }                                                                                  \
    PTAC_ROW(OP, ISA, PTAC_EXACT, NEEDS, ptac_pad_accepts, run_##name)

DEFINE_ROW(CONSTANT_PAD_ND, constant, ptac_pad_share_rows)
DEFINE_ROW(REFLECTION_PAD, reflection, ptac_pad_share_rows)
DEFINE_ROW(REPLICATION_PAD, replication, ptac_pad_share_rows)
DEFINE_ROW(REFLECTION_PAD_BACKWARD, reflection_backward, ptac_pad_share_planes)
DEFINE_ROW(REPLICATION_PAD_BACKWARD, replication_backward, ptac_pad_share_planes)
