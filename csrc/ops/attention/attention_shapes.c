/*
 * attention_shapes.c - where calls of attention lie among the calibrated ones.
 */
#include "ops/attention/attention.h"

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_attention *p = call->params;

    if (p->n_heads == 0 || p->n_queries == 0 || p->n_keys == 0 || p->d == 0)
        return PTAC_EMPTY;
    shape->kind = p->has_mask    ? PTAC_ATTENTION_MASKED
                  : p->is_causal ? PTAC_ATTENTION_CAUSAL
                                 : PTAC_ATTENTION_FULL;
    shape->work = p->n_heads * p->n_queries * p->n_keys * p->d;
    return PTAC_TAKE;
}

PTAC_SHAPES(ATTENTION, classify, "full", "causal", "masked")

PTAC_SHAPES(ATTENTION_BACKWARD, classify, "full", "causal", "masked")
