/*
 * sgd_avx512.c - the SGD step, sixteen floats or eight doubles at a time.
 *
 * The algorithm is in sgd_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/optim/step.h"

#include "ops/optim/avx512_f32_tpl.h"

#include "ops/optim/sgd_tpl.h"

#include "ops/optim/undef_tpl.h"

#include "ops/optim/avx512_f64_tpl.h"

#include "ops/optim/sgd_tpl.h"

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, sgd_range_f32, sgd_range_f64);
}

PTAC_ROW(SGD_STEP, "avx512", PTAC_EXACT, PTAC_CPU_AVX512, ptac_step_accepts_fused, run)
#endif
