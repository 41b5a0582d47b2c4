/*
 * cat_tpl.h - tensors put beside each other, by vectors.
 *
 * Expects the words of ops/math/lanes.h. The includer also defines
 *
 *   ISA     string: the row's name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/copy/cat.h"
#include "ops/math/weave_tpl.h"

#include <string.h>

/* m rows of n single elements, from row i on; n <= MOST_WOVEN. */
INLINE void weave_step(const ptac_call *call, const weave *w, int n, int64_t i, int m,
                       float *to)
{
    vec parts[MOST_WOVEN];

#pragma GCC unroll 4
    for (int k = 0; k < n; k++)
        parts[k] = v_load_first((const float *)call->inputs[k].data + i, m);
#pragma GCC unroll 4
    for (int k = 0; k < n; k++)
        v_store_first(to + i * n + k * LANES, woven(w, parts, n, k),
                      m == LANES ? LANES : part_of(m * n, k));
}

INLINE void weave_rows(const ptac_call *call, int n, int64_t begin, int64_t end)
{
    const weave w = weave_of(n, false);
    float *to = call->outputs[0].data;

    FOR_LANES(i, m, begin, end, { weave_step(call, &w, n, i, m, to); });
}

static void weave_many(const ptac_call *call, int64_t begin, int64_t end)
{
    const int n = call->n_inputs;
    float *to = (float *)call->outputs[0].data + begin * n;

    for (int64_t i = begin; i < end; i++)
        for (int k = 0; k < n; k++)
            *to++ = ((const float *)call->inputs[k].data)[i];
}

INLINE void move(const float *from, int64_t n, float *to)
{
    FOR_LANES(i, m, 0, n, { v_store_first(to + i, v_load_first(from + i, m), m); });
}

/*
 * Up to a vector more, there and here: in moves that are not much longer than the run,
 * as long ones would write the same line of the cache again and again.
 */
INLINE void move_whole(const float *from, int64_t n, float *to)
{
    if (n == 1)
        *to = *from;
    else if (n == 2)
        memcpy(to, from, 2 * sizeof *to);
    else if (n <= 4)
        memcpy(to, from, 4 * sizeof *to);
    else if (n <= 8)
        memcpy(to, from, 8 * sizeof *to);
    else
        for (int64_t i = 0; i < n; i += LANES)
            v_store(to + i, v_load(from + i));
}

/*
 * Whole vectors, of which what lies behind a run is written again by the next one. The
 * last LANES rows stop where their runs end.
 */
INLINE void put_rows(const ptac_call *call, int n, int64_t begin, int64_t end)
{
    const ptac_cat *p = call->params;
    const float *from[PTAC_MAX_INPUTS];
    int64_t widths[PTAC_MAX_INPUTS], strides[PTAC_MAX_INPUTS];
    float *to = (float *)call->outputs[0].data + begin * p->width;

#pragma GCC unroll 3
    for (int i = 0; i < n; i++) {
        widths[i] = p->widths[i];
        strides[i] = p->strides[i];
        from[i] = (const float *)call->inputs[i].data + begin * strides[i];
    }
    for (int64_t row = begin; row < end; row++) {
        const bool is_whole = row < end - LANES;

#pragma GCC unroll 3
        for (int i = 0; i < n; i++) {
            if (is_whole)
                move_whole(from[i], widths[i], to);
            else
                move(from[i], widths[i], to);
            from[i] += strides[i];
            to += widths[i];
        }
    }
}

TARGET static void put(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;

    if (!ptac_cat_is_woven(call)) {
        if (call->n_inputs == 2)
            put_rows(call, 2, begin, end);
        else if (call->n_inputs == 3)
            put_rows(call, 3, begin, end);
        else
            put_rows(call, call->n_inputs, begin, end);
    } else if (call->n_inputs == 2)
        weave_rows(call, 2, begin, end);
    else if (call->n_inputs == 3)
        weave_rows(call, 3, begin, end);
    else if (call->n_inputs == 4)
        weave_rows(call, 4, begin, end);
    else
        weave_many(call, begin, end);
}

static ptac_status run(const ptac_call *call)
{
    return ptac_cat_share_rows(call, put);
}

PTAC_ROW(CAT, ISA, PTAC_EXACT, NEEDS, ptac_cat_accepts, run)
