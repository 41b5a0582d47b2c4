/*
 * adam_avx2.c - the Adam and AdamW steps, eight floats or four doubles at a time.
 *
 * The algorithm is in adam_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/optim/step_avx2.h"

#define OF(name) name##_f32
#include "ops/optim/adam_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/optim/adam_tpl.h"

static ptac_status run(const ptac_call *call)
{
    return ptac_step_run(call, adam_range_f32, adam_range_f64);
}

PTAC_ROW(ADAM_STEP, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_step_accepts_fused, run)
PTAC_ROW(ADAMW_STEP, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_step_accepts_fused, run)
#endif
