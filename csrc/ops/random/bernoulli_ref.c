/*
 * bernoulli_ref.c - bernoulli_() by its definition, and its shape kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/random/bernoulli.h"

PTAC_SHAPES(BERNOULLI, ptac_classify_elements, "any")

static ptac_status run(const ptac_call *call)
{
    const ptac_bernoulli *params = call->params;
    float *y = call->outputs[0].data;

    for (int64_t i = 0; i < call->outputs[0].n_elements; i++)
        y[i] = ptac_engine_keeps(params->engine, params->p);
    return PTAC_OK;
}

PTAC_ROW(BERNOULLI, "scalar", PTAC_EXACT, 0, ptac_bernoulli_accepts, run)
