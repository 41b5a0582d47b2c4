/*
 * mt19937.c - torch's random numbers on the CPU, many at a time.
 */
#include "data/mt19937.h"

enum {
    PERIOD = 397, /* distance of the words that are mixed */
};

static uint32_t twist(uint64_t high, uint64_t low)
{
    const uint32_t word =
        ((uint32_t)high & 0x80000000u) | ((uint32_t)low & 0x7fffffffu);

    return (word >> 1) ^ (word & 1 ? 0x9908b0dfu : 0);
}

static void renew(ptac_mt19937 *state)
{
    uint64_t *words = state->words;

    for (int i = 0; i < PTAC_MT_WORDS; i++) {
        const uint64_t following = words[(i + 1) % PTAC_MT_WORDS];
        const uint64_t mixed = words[(i + PERIOD) % PTAC_MT_WORDS];

        words[i] = (uint32_t)mixed ^ twist(words[i], following);
    }
    state->left = PTAC_MT_WORDS;
    state->next = 0;
}

static uint32_t temper(uint32_t word)
{
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

bool ptac_mt19937_is_sound(const ptac_mt19937 *state)
{
    if (state->left == 1) /* a renewal is due: next is not used */
        return state->next <= PTAC_MT_WORDS;
    return state->left > 1 && state->left <= PTAC_MT_WORDS &&
           state->next == (uint64_t)(PTAC_MT_WORDS + 1 - state->left);
}

void ptac_mt19937_draw(ptac_mt19937 *state, uint32_t *drawn, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (--state->left == 0)
            renew(state);
        drawn[i] = temper((uint32_t)state->words[state->next++]);
    }
}
