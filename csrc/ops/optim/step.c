/*
 * step.c - what the optimizers' rows share.
 */
#include "ops/optim/step.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    shape->kind = 0;
    shape->work = call->inputs[0].n_elements;
    return PTAC_TAKE;
}

#define DEFINE_SHAPES(id, name)                                                        \
    static const ptac_op_shapes name = {                                               \
        .op = id,                                                                      \
        .kinds = {"dense"},                                                            \
        .classify = classify,                                                          \
    };                                                                                 \
    PTAC_REGISTER_SHAPES(name)

DEFINE_SHAPES(PTAC_OP_SGD_STEP, sgd_shapes)
DEFINE_SHAPES(PTAC_OP_ADAM_STEP, adam_shapes)
DEFINE_SHAPES(PTAC_OP_ADAMW_STEP, adamw_shapes)

ptac_reason ptac_step_accepts(const ptac_call *call)
{
    const ptac_dtype dtype = call->inputs[0].dtype;

    return dtype == PTAC_F32 || dtype == PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

ptac_reason ptac_step_accepts_fused(const ptac_call *call)
{
    const ptac_reason why = ptac_step_accepts(call);

    return why || ptac_the_host.fma ? why : PTAC_NUMERICS;
}

ptac_status ptac_step_run(const ptac_call *call, ptac_range_fn f32, ptac_range_fn f64)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, PTAC_STEP_GRAIN,
                      call->inputs[0].dtype == PTAC_F32 ? f32 : f64,
                      (void *)call->params);
    return PTAC_OK;
}
