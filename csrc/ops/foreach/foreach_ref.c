/*
 * foreach_ref.c - what the rows over lists of tensors share, and the rows "scalar".
 */
#include "ops/foreach/foreach.h"

#include "ops/math/elements.h"

#include <math.h>

/*
 * Of small tensors torch's time goes into calls, of large ones into memory: kinds tell
 * the mean size. Tables begin at LEAST_MEASURED elements; fewer cost stock as much.
 */
enum {
    KIND_SMALL,
    KIND_MEDIUM,
    KIND_LARGE,
    N_SIZES,
    SMALL_AT_MOST = 2048,
    MEDIUM_AT_MOST = 65536,
    LEAST_MEASURED = 4096,
};

static int size_of(const ptac_call *call)
{
    const ptac_foreach *f = call->params;
    const int64_t mean = call->inputs[0].n_elements / (f->n_items ? f->n_items : 1);

    return mean <= SMALL_AT_MOST    ? KIND_SMALL
           : mean <= MEDIUM_AT_MOST ? KIND_MEDIUM
                                    : KIND_LARGE;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const int64_t n = call->inputs[0].n_elements;

    shape->kind = size_of(call);
    shape->work = n < LEAST_MEASURED ? LEAST_MEASURED : n;
    return PTAC_TAKE;
}

/* A factor of 1 leaves all as it is: torch still goes over it. */
static ptac_reason classify_clip(const ptac_call *call, ptac_shape *shape)
{
    const ptac_foreach *f = call->params;
    const int way = f->way == PTAC_FOREACH_NORM ? 0 : f->number == 1 ? 2 : 1;
    const ptac_reason why = classify(call, shape);

    shape->kind += way * N_SIZES;
    return why;
}

PTAC_SHAPES(CLIP_GRAD_NORM, classify_clip, "norm small", "norm medium", "norm large",
            "scale small", "scale medium", "scale large", "whole small", "whole medium",
            "whole large")
PTAC_SHAPES(FOREACH_CLAMP, classify, "small", "medium", "large")
PTAC_SHAPES(FOREACH_LERP, classify, "small", "medium", "large")
PTAC_SHAPES(UNSCALE_GRADS, classify, "small", "medium", "large")

ptac_reason ptac_foreach_accepts(const ptac_call *call)
{
    const ptac_foreach *f = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype == PTAC_F64 && call->op == PTAC_OP_CLIP_GRAD_NORM &&
        f->way == PTAC_FOREACH_NORM)
        return PTAC_DTYPE;
    return dtype == PTAC_F32 || dtype == PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

ptac_reason ptac_foreach_accepts_fused(const ptac_call *call)
{
    const ptac_reason why = ptac_foreach_accepts(call);

    return why || ptac_the_host.fma ? why : PTAC_NUMERICS;
}

/* The item that element at belongs to. */
static int64_t find(const ptac_foreach *f, int64_t at)
{
    int64_t low = 0, high = f->n_items;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;

        if (f->items[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

typedef struct parts {
    const ptac_foreach *f;
    ptac_foreach_part part;
} parts;

static void run_parts(int64_t begin, int64_t end, void *context)
{
    const parts *p = context;
    const ptac_foreach_item *item = &p->f->items[find(p->f, begin)];

    for (int64_t at = begin; at < end; item++) {
        const int64_t first = at - item->begin;
        const int64_t n = ptac_least(item->n - first, end - at);

        if (n > 0)
            p->part(item, first, n, p->f);
        at += n;
    }
}

ptac_status ptac_foreach_run(const ptac_call *call, ptac_foreach_part f32,
                             ptac_foreach_part f64)
{
    const ptac_foreach *f = call->params;
    const ptac_foreach_part part = call->inputs[0].dtype == PTAC_F32 ? f32 : f64;

    if (call->op == PTAC_OP_CLIP_GRAD_NORM && f->number == 1)
        return PTAC_OK;
    ptac_parallel_for(0, call->inputs[0].n_elements, PTAC_FOREACH_GRAIN, run_parts,
                      &(parts){f, part});
    return PTAC_OK;
}

typedef struct norms {
    const ptac_foreach *f;
    ptac_foreach_norm norm;
} norms;

/* Of the items that begin in there. */
static void run_norms(int64_t begin, int64_t end, void *context)
{
    const norms *p = context;
    const ptac_foreach *f = p->f;

    for (int64_t i = find(f, begin); i < f->n_items && f->items[i].begin < end; i++)
        if (f->items[i].begin >= begin && f->items[i].n)
            f->norms[i] = p->norm(f->items[i].self, f->items[i].n);
}

ptac_status ptac_foreach_run_norms(const ptac_call *call, ptac_foreach_norm norm)
{
    const ptac_foreach *f = call->params;

    for (int64_t i = 0; i < f->n_items; i++)
        f->norms[i] = 0;
    ptac_parallel_for(0, call->inputs[0].n_elements, PTAC_FOREACH_GRAIN, run_norms,
                      &(norms){f, norm});
    return PTAC_OK;
}

float ptac_foreach_norm_of(const float *x, int64_t n)
{
    enum { LANES = 8 };
    float sums[LANES] = {0};
    int64_t i = 0;

    if (n == 1)
        return fabsf(x[0]);
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            sums[j] += x[i + j] * x[i + j];
    for (int j = 1; j < LANES; j++)
        sums[0] += sums[j];
    return ptac_foreach_root(sums[0], x + i, (int)(n - i));
}

float ptac_foreach_root(float sum, const float *x, int n)
{
    int i = 0;

    for (; n >= 4 && i < 4; i++)
        sum += x[i] * x[i];
    for (; i < n; i++)
        sum = ptac_the_host.fma ? fmaf(x[i], x[i], sum) : sum + x[i] * x[i];
    return sqrtf(sum);
}

#define norm      ptac_foreach_norm_of
#define fused_f32 fmaf
#define fused_f64 fma

#define OF(name) name##_f32
#include "ops/foreach/foreach_ref_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/foreach/foreach_ref_tpl.h"

PTAC_FOREACH_ROWS("scalar", 0, ptac_foreach_accepts)
