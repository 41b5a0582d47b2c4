/*
 * small_ref.c - small_pointwise by its definition, and its shape kinds.
 */
#include "ops/pointwise/small.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_small *p = call->params;
    const ptac_reason why = ptac_classify_elements(call, shape);

    if (!why && call->inputs[0].n_elements > PTAC_SMALL_MOST)
        return PTAC_SHAPE;
    shape->kind = (int)p->kind;
    return why;
}

PTAC_SHAPES(SMALL_POINTWISE, classify, "relu", "add", "sub", "mul", "div", "add_number",
            "sub_number", "mul_number", "div_number")

ptac_reason ptac_small_accepts(const ptac_call *call)
{
    for (int i = 0; i < call->n_inputs; i++)
        if (call->inputs[i].dtype != PTAC_F32)
            return PTAC_DTYPE;
    return PTAC_TAKE;
}

static float of_both(ptac_small_kind kind, float x, float y)
{
    switch (kind) {
    case PTAC_SMALL_ADD:
        return x + y;
    case PTAC_SMALL_SUB:
        return x - y;
    case PTAC_SMALL_MUL:
        return x * y;
    case PTAC_SMALL_DIV:
        return x / y;
    default:
        return x < 0 ? 0 : x;
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_small *p = call->params;
    const bool is_number = p->kind >= PTAC_SMALL_ADD_NUMBER;
    const ptac_small_kind kind = is_number ? p->kind - PTAC_SMALL_NUMBER : p->kind;
    const float *x = call->inputs[0].data;
    const float *y = call->n_inputs > 1 ? call->inputs[1].data : NULL;
    float *to = call->outputs[0].data;

    for (int64_t i = 0; i < call->inputs[0].n_elements; i++)
        to[i] = of_both(kind, x[i], y ? y[i] : p->number);
    return PTAC_OK;
}

PTAC_ROW(SMALL_POINTWISE, "scalar", PTAC_EXACT, 0, ptac_small_accepts, run)
