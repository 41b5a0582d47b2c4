/*
 * bernoulli.h - ones with probability p, else zeros, as torch's bernoulli_() draws them
 * from a generator of the CPU. Level exact, in the numbers and in the engine's state.
 *
 * The input, of float32, is the output as well; its elements are drawn in the order in
 * which they lie.
 */
#ifndef PTAC_OPS_RANDOM_BERNOULLI_H
#define PTAC_OPS_RANDOM_BERNOULLI_H

#include "core/kernel.h"
#include "ops/random/engine.h"

typedef struct ptac_bernoulli {
    double p; /* from 0 to 1 */
    /* Sound, and nobody else's while a row runs; accepts() does not look at it. */
    ptac_engine *engine;
} ptac_bernoulli;

/* What every row accepts. */
static inline ptac_reason ptac_bernoulli_accepts(const ptac_call *call)
{
    const ptac_bernoulli *params = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    return params->p >= 0 && params->p <= 1 ? PTAC_TAKE : PTAC_ARGUMENT;
}

#endif
