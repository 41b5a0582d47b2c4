/*
 * sgd_avx2.c - the SGD step, eight floats or four doubles at a time.
 *
 * The algorithm is in sgd_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/optim/step.h"

#include "ops/optim/avx2_f32_tpl.h"

#include "ops/optim/sgd_tpl.h"

#include "ops/optim/undef_tpl.h"

#include "ops/optim/avx2_f64_tpl.h"

#include "ops/optim/sgd_tpl.h"

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_F64)
        return PTAC_DTYPE;
    return ptac_the_host.fma ? PTAC_TAKE : PTAC_NUMERICS;
}

static ptac_status run(const ptac_call *call)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, PTAC_STEP_GRAIN,
                      call->inputs[0].dtype == PTAC_F32 ? sgd_range_f32 : sgd_range_f64,
                      (void *)call->params);
    return PTAC_OK;
}

static const ptac_kernel sgd_avx2 = {
    .op = PTAC_OP_SGD_STEP,
    .name = "avx2",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX2,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(sgd_avx2)
#endif
