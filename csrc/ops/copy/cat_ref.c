/*
 * cat_ref.c - tensors put beside each other by definition, and shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/copy/cat.h"

#include <string.h>

enum {
    WOVEN,
    WOVEN_MANY,
    SHORT_RUNS,
    RUNS,
    LONG_RUNS,
    /* The same of inputs whose runs lie apart. */
    SHORT_PARTS,
};

enum {
    FEW = 4, /* tensors */
};

/* By the elements of a run, all inputs taken together. */
static int kind_of(const ptac_call *call)
{
    const ptac_cat *p = call->params;
    const int64_t run = p->width / call->n_inputs;
    bool has_parts = false;

    if (ptac_cat_is_woven(call))
        return call->n_inputs <= FEW ? WOVEN : WOVEN_MANY;
    for (int i = 0; i < call->n_inputs; i++)
        has_parts |= p->strides[i] != p->widths[i];
    return (run < 8    ? SHORT_RUNS
            : run < 64 ? RUNS
                       : LONG_RUNS) +
           has_parts * (SHORT_PARTS - SHORT_RUNS);
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_cat *p = call->params;

    shape->kind = kind_of(call);
    shape->work = p->rows * p->width;
    return PTAC_TAKE;
}

PTAC_SHAPES(CAT, classify, "woven", "woven_many", "short_runs", "runs", "long_runs",
            "short_parts", "parts", "long_parts")

ptac_reason ptac_cat_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static void put(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_cat *p = call->params;
    float *to = (float *)call->outputs[0].data + begin * p->width;

    for (int64_t row = begin; row < end; row++) {
        for (int i = 0; i < call->n_inputs; i++) {
            const float *from = call->inputs[i].data;

            memcpy(to, from + row * p->strides[i], (size_t)p->widths[i] * sizeof *to);
            to += p->widths[i];
        }
    }
}

static ptac_status run(const ptac_call *call)
{
    return ptac_cat_share_rows(call, put);
}

PTAC_ROW(CAT, "scalar", PTAC_EXACT, 0, ptac_cat_accepts, run)
