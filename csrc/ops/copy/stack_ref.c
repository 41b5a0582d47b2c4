/*
 * stack_ref.c - stacking by definition, and its shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/copy/stack.h"

/* Two, four and eight are joined as vectors. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    enum { TWO, THREE, FOUR, MORE };
    const int n = call->n_inputs;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (n < 2 || n > PTAC_MAX_INPUTS)
        return PTAC_ARGUMENT;
    if (call->inputs[0].n_elements == 0)
        return PTAC_EMPTY;
    shape->kind = n == 2 ? TWO : n == 3 ? THREE : n == 4 ? FOUR : MORE;
    shape->work = n * call->inputs[0].n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES(STACK, classify, "2", "3", "4", "more")

ptac_reason ptac_stack_accepts(const ptac_call *call)
{
    ptac_shape shape;

    return classify(call, &shape);
}

static void stack(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    float *to = (float *)call->outputs[0].data + begin * call->n_inputs;

    for (int64_t i = begin; i < end; i++)
        for (int k = 0; k < call->n_inputs; k++)
            *to++ = ((const float *)call->inputs[k].data)[i];
}

static ptac_status run(const ptac_call *call)
{
    ptac_share_stack(call, stack);
    return PTAC_OK;
}

PTAC_ROW(STACK, "scalar", PTAC_EXACT, 0, ptac_stack_accepts, run)
