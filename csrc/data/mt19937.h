/*
 * mt19937.h - torch's random numbers on the CPU, many at a time.
 *
 * torch's default generator is a Mersenne Twister whose state it tells and takes as
 * bytes: torch.get_rng_state(). A batch of draws from such bytes leaves them as the
 * same draws one by one through torch would.
 *
 * Source: M. Matsumoto and T. Nishimura, Mersenne Twister: A 623-dimensionally
 * equidistributed uniform pseudo-random number generator, ACM TOMACS 8 (1998).
 */
#ifndef PTAC_DATA_MT19937_H
#define PTAC_DATA_MT19937_H

#include "core/base.h"

enum {
    PTAC_MT_WORDS = 624,
};

/* The beginning of what torch.get_rng_state() gives, as it lies there. */
typedef struct ptac_mt19937 {
    uint64_t seed;
    int32_t left; /* draws until the words are renewed, which comes before the last */
    int32_t is_seeded;
    uint64_t next; /* the word that is drawn next, where no renewal is due */
    uint64_t words[PTAC_MT_WORDS];
} ptac_mt19937;

/* Whether these can be a generator's state: none of its fields would lead astray. */
bool ptac_mt19937_is_sound(const ptac_mt19937 *state);

/* Draw n numbers of 32 bits each. */
void ptac_mt19937_draw(ptac_mt19937 *state, uint32_t *drawn, int64_t n);

#endif
