/*
 * engine.c - a Mersenne Twister by its definition.
 */
#include "ops/random/engine.h"

static uint32_t twist(uint32_t high, uint32_t low)
{
    const uint32_t word = (high & 0x80000000u) | (low & 0x7fffffffu);

    return (word >> 1) ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void renew(ptac_engine *engine)
{
    uint32_t *words = engine->words;

    for (int i = 0; i < PTAC_ENGINE_WORDS; i++)
        words[i] = words[(i + PTAC_ENGINE_PERIOD) % PTAC_ENGINE_WORDS] ^
                   twist(words[i], words[(i + 1) % PTAC_ENGINE_WORDS]);
    engine->left = PTAC_ENGINE_WORDS;
    engine->next = 0;
}

uint32_t ptac_engine_draw(ptac_engine *engine)
{
    if (--engine->left == 0)
        renew(engine);
    return ptac_engine_temper(engine->words[engine->next++]);
}

bool ptac_engine_keeps(ptac_engine *engine, double p)
{
    const uint64_t high = ptac_engine_draw(engine), low = ptac_engine_draw(engine);
    const uint64_t v = (high << 32 | low) & ((UINT64_C(1) << 53) - 1);

    return (double)v * 0x1p-53 < p;
}
