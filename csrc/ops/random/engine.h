/*
 * engine.h - the engine of torch's generators on the CPU, a Mersenne Twister, as it
 * lies in them; and which of its numbers keep an element.
 *
 * For an element torch draws two words, a and then b, makes the 53 lowest bits of
 * a << 32 | b a number v, and keeps the element where v * 2^-53 < p in double. The
 * product is exact, so that this is v < p * 2^53, and as v is whole, v < the least
 * whole number that is not below p * 2^53. That product, too, is exact, for every
 * double from 0 to 1, and so is what ceil() makes of it.
 *
 * Sources: ATen's MT19937RNGEngine.h (mt19937_data_pod), DistributionsHelper.h and
 * TransformationHelper.h (uniform_real, bernoulli); M. Matsumoto and T. Nishimura,
 * Mersenne Twister, ACM TOMACS 8 (1998).
 */
#ifndef PTAC_OPS_RANDOM_ENGINE_H
#define PTAC_OPS_RANDOM_ENGINE_H

#include "core/base.h"

#include <math.h>

enum {
    PTAC_ENGINE_WORDS = 624,
    PTAC_ENGINE_PERIOD = 397, /* distance of the words that are mixed */
    PTAC_ENGINE_HIGH_BITS = 21,
};

typedef struct ptac_engine {
    uint64_t seed;
    int32_t left; /* draws until the words are renewed, which comes before the last */
    bool is_seeded;
    uint32_t next; /* the word that is drawn next, where no renewal is due */
    uint32_t words[PTAC_ENGINE_WORDS];
} ptac_engine;

/* Whether the fields agree with each other, as they do in every engine that drew. */
static inline bool ptac_engine_is_sound(const ptac_engine *engine)
{
    if (!engine->is_seeded)
        return false;
    if (engine->left == 1) /* a renewal is due: next is not used */
        return engine->next <= PTAC_ENGINE_WORDS;
    return engine->left > 1 && engine->left <= PTAC_ENGINE_WORDS &&
           engine->next == (uint32_t)(PTAC_ENGINE_WORDS + 1 - engine->left);
}

/* The least v that does not keep an element: its bits above 32, and those below. */
typedef struct ptac_bound {
    uint32_t high, low;
} ptac_bound;

static inline ptac_bound ptac_bound_of(double p)
{
    const uint64_t least = (uint64_t)ceil(p * 0x1p53);

    return (ptac_bound){(uint32_t)(least >> 32), (uint32_t)least};
}

static inline uint32_t ptac_engine_temper(uint32_t word)
{
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

/* The next word; and whether the next two keep an element. By the definition. */
uint32_t ptac_engine_draw(ptac_engine *engine);
bool ptac_engine_keeps(ptac_engine *engine, double p);

#endif
