/*
 * step_ref.c - the rows "scalar" of SGD, Adam and AdamW, which also serve hosts whose
 * own kernels do not fuse multiply and add.
 */
#include "ops/math/elements.h"
#include "ops/optim/step.h"

#include <math.h>

enum {
    BLOCK = 256,
};

#define fused_f32 fmaf
#define fused_f64 fma

#define OF(name) name##_f32
#include "ops/optim/step_ref_tpl.h"
#undef OF
#define OF(name) name##_f64
#include "ops/optim/step_ref_tpl.h"

static ptac_status sgd(const ptac_call *call)
{
    return ptac_step_run(call, sgd_range_f32, sgd_range_f64);
}

static ptac_status adam(const ptac_call *call)
{
    return ptac_step_run(call, adam_range_f32, adam_range_f64);
}

PTAC_ROW(SGD_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, sgd)
PTAC_ROW(ADAM_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, adam)
PTAC_ROW(ADAMW_STEP, "scalar", PTAC_EXACT, 0, ptac_step_accepts, adam)
