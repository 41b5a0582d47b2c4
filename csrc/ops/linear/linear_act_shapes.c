/*
 * linear_act_shapes.c - where calls of linear_act lie among the calibrated ones.
 */
#include "ops/linear/linear_act.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_linear_act *p = call->params;
    const bool has_act = p->activation != PTAC_ACT_NONE;

    if (p->m == 0 || p->n == 0 || p->k == 0)
        return PTAC_EMPTY;
    /*
     * Products with a thin side run at the speed of memory, and every library's alike.
     */
    if (p->m < 8 || p->n < 16 || p->k < 16)
        return PTAC_SHAPE;
    shape->kind = p->is_training
                      ? (has_act ? PTAC_LINEAR_TRAIN_ACT : PTAC_LINEAR_TRAIN)
                      : (has_act ? PTAC_LINEAR_INFER_ACT : PTAC_LINEAR_INFER);
    shape->work = p->m * p->n * p->k;
    shape->sizes[0] = p->m;
    shape->sizes[1] = p->k;
    shape->sizes[2] = p->n;
    shape->uses = shape->work / (p->m * p->n + p->m * p->k + p->n * p->k);
    return PTAC_TAKE;
}

PTAC_SHAPES(LINEAR_ACT, classify, "infer", "infer_act", "train", "train_act")

PTAC_SHAPES(LINEAR_ACT_BACKWARD, classify, "infer", "infer_act", "train", "train_act")
