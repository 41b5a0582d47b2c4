/*
 * step_ref.c - what the rows of the optimizers share, and the rows "scalar", which also
 * serve hosts whose own kernels do not fuse multiply and add.
 */
#include "ops/math/elements.h"
#include "ops/optim/step.h"

#include <math.h>

enum {
    BLOCK = 256,
    LEAST_MEASURED = 256,
};

/*
 * Tables begin at LEAST_MEASURED elements. A smaller step costs stock as much, whose
 * time goes into calls, and us no more: on Zen 4 all rows took 1.4 to 3.2 times less
 * than stock's time at one element and at 256 alike.
 */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const int64_t n = call->inputs[0].n_elements;

    shape->kind = ((const ptac_step *)call->params)->way;
    shape->work = n < LEAST_MEASURED ? LEAST_MEASURED : n;
    return PTAC_TAKE;
}

PTAC_SHAPES(SGD_STEP, classify, "dense", "foreach", "fused")
PTAC_SHAPES(ADAM_STEP, classify, "dense", "foreach", "fused")
PTAC_SHAPES(ADAMW_STEP, classify, "dense", "foreach", "fused")
PTAC_SHAPES(ADADELTA_STEP, classify, "dense", "foreach")
PTAC_SHAPES(RMSPROP_STEP, classify, "dense", "foreach")
PTAC_SHAPES(ADAGRAD_STEP, classify, "dense", "foreach", "fused")
PTAC_SHAPES(NADAM_STEP, classify, "dense", "foreach")

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    return dtype == PTAC_F32 || dtype == PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

ptac_reason ptac_step_accepts_fused(const ptac_call *call)
{
    const ptac_reason why = accepts(call);

    return why || ptac_the_host.fma ? why : PTAC_NUMERICS;
}

typedef struct blocks {
    ptac_range_fn range;
    void *step;
    int64_t n_elements;
} blocks;

static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const blocks *b = context;

    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i * PTAC_STEP_BLOCK;

        b->range(first, ptac_least(first + PTAC_STEP_BLOCK, b->n_elements), b->step);
    }
}

ptac_status ptac_step_run(const ptac_call *call, ptac_range_fn f32, ptac_range_fn f64)
{
    const ptac_step *step = call->params;
    const int64_t n = call->inputs[0].n_elements;
    const ptac_range_fn range = call->inputs[0].dtype == PTAC_F32 ? f32 : f64;

    if (step->sums)
        ptac_parallel_for(0, ptac_step_sums(n), PTAC_STEP_GRAIN / PTAC_STEP_BLOCK,
                          run_blocks, &(blocks){range, (void *)step, n});
    else
        ptac_parallel_for(0, n, PTAC_STEP_GRAIN, range, (void *)step);
    return PTAC_OK;
}

#define fused_f32 fmaf
#define fused_f64 fma
#define ieee_f32  sqrtf
#define ieee_f64  sqrt

#define OF(name) name##_f32
#include "ops/optim/step_ref_tpl.h"
#include "ops/optim/rooted_ref_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/optim/step_ref_tpl.h"
#include "ops/optim/rooted_ref_tpl.h"

PTAC_STEP_ROWS("scalar", 0, accepts)
