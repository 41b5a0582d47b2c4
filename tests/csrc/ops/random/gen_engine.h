/*
 * gen_engine.h - what generators of random calls that draw from an engine share.
 */
#ifndef PTAC_TESTS_GEN_ENGINE_H
#define PTAC_TESTS_GEN_ENGINE_H

#include "checkrows.h"
#include "ops/random/engine.h"

#include <math.h>

/* More than one, and two, states of an engine give; lengths beside vectors too. */
static inline int64_t random_draws(rng *r)
{
    return rng_chance(r, 30) ? rng_length(r, 2500) : rng_length(r, 90);
}

/* Between 0 and 1: of few bits, of all bits, and next to nothing. */
static inline double random_probability(rng *r)
{
    static const double usual[] = {0.5, 0.9, 0.1, 1 - 0.1, 1.0 / 3, 0x1p-21, 0x1p-60};

    if (rng_chance(r, 50))
        return usual[rng_below(r, 7)];
    return ldexp((double)((rng_next(r) >> 11) | 1), -53);
}

/* Words whose bits are those of a bound are rarer than any test could wait for. */
static inline uint32_t untempered(uint32_t word)
{
    word ^= word >> 18;
    word ^= (word << 15) & 0xefc60000u;
    for (uint32_t i = 0, y = word; i < 4; i++)
        word = y ^ ((word << 7) & 0x9d2c5680u);
    for (uint32_t i = 0, y = word; i < 2; i++)
        word = y ^ (word >> 11);
    return word;
}

/*
 * An engine, the memory added last, in any state that draws leave. Some words are those
 * at which an element's second word decides whether p keeps it.
 */
static inline void add_engine(rng *r, test_call *c, double p)
{
    const ptac_bound bound = ptac_bound_of(p);
    ptac_engine *engine = test_memory(c, UPDATES, PTAC_I64, sizeof *engine / 8);
    const bool meets_bound = rng_chance(r, 30);

    engine->seed = rng_next(r);
    engine->is_seeded = true;
    engine->left =
        rng_chance(r, 20) ? 1 : (int32_t)rng_between(r, 2, PTAC_ENGINE_WORDS);
    engine->next = engine->left == 1 ? (uint32_t)RNG_PICK(r, 0, PTAC_ENGINE_WORDS)
                                     : (uint32_t)(PTAC_ENGINE_WORDS + 1 - engine->left);
    for (int i = 0; i < PTAC_ENGINE_WORDS; i++) {
        const uint32_t word = (uint32_t)rng_next(r);
        const uint32_t high = (word & 0xffe00000u) | bound.high;

        engine->words[i] = meets_bound && rng_chance(r, 20) ? untempered(high) : word;
    }
}

#endif
