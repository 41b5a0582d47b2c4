/*
 * random_tpl.h - numbers of torch's generators on the CPU, a vector of them at a time:
 * bernoulli_(), dropout and its gradient.
 *
 * The words are renewed into one of two copies in turn, so that vectors at the end of a
 * stretch may overlap those before. Of an element's two words nearly always the first
 * decides; the second is looked at where the first one's bits are the bound's.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA, NEEDS               the rows' name, and what the CPU must have
 *   i_load, i_store          of LANES words anywhere
 *   i_xor_some(v, m, b)      v ^ (b & m)
 *   i_xor_odd(v, o, w)       v ^ w in lanes where o is odd
 *   i_pick(m, a, b)          bits of a where m has ones, else of b
 *   i_evens(a, b)            words 0, 2, ... of a and then of b
 *   k_less, k_equal          masks of words below 2^31
 *   k_bits(k), k_from(bits)  a mask as bits of an int, and back
 *   k_put(to, k, n)          the first n of a mask as bytes, 0 or 1
 *   k_take(from, n)          a mask from n of those
 */
#include "core/host.h"
#include "ops/random/bernoulli.h"
#include "ops/random/dropout.h"

#include <string.h>

enum {
    LAST = PTAC_ENGINE_WORDS - 1,
    FIRST_STRETCH = PTAC_ENGINE_WORDS - PTAC_ENGINE_PERIOD,
};

/* Words, and behind them what a vector at their end may read. */
typedef struct block {
    uint32_t words[PTAC_ENGINE_WORDS + 2 * LANES];
} block;

INLINE ints twisted(const uint32_t *old, const uint32_t *mixed)
{
    const ints low = i_load(old + 1);
    const ints word = i_pick(EPI32(set1)((int)0x80000000u), i_load(old), low);

    return i_xor_odd(i_load(mixed) ^ EPI32(srli)(word, 1), low,
                     EPI32(set1)((int)0x9908b0dfu));
}

/* next[i] for i from begin to end, mixed with what lies at mixed + i. */
INLINE void renew_stretch(const uint32_t *old, const uint32_t *mixed, uint32_t *next,
                          int begin, int end)
{
    for (int i = begin; i + LANES <= end; i += LANES)
        i_store(next + i, twisted(old + i, mixed + i));
    i_store(next + end - LANES, twisted(old + end - LANES, mixed + end - LANES));
}

TARGET static void renew(const uint32_t *old, uint32_t *next)
{
    const uint32_t word = (old[LAST] & 0x80000000u), *first = next;
    uint32_t low;

    renew_stretch(old, old + PTAC_ENGINE_PERIOD, next, 0, FIRST_STRETCH);
    renew_stretch(old, first - FIRST_STRETCH, next, FIRST_STRETCH, LAST);
    low = next[0];
    next[LAST] = next[PTAC_ENGINE_PERIOD - 1] ^ (word | (low & 0x7fffffffu)) >> 1 ^
                 (low & 1 ? 0x9908b0dfu : 0);
}

/* Those lanes among the equal ones whose second word is below the bound's. */
static uint32_t kept_by_second(const uint32_t *words, uint32_t equal, uint32_t low)
{
    uint32_t found = 0;

    for (; equal; equal &= equal - 1) {
        const int lane = __builtin_ctz(equal);

        if (ptac_engine_temper(words[2 * lane + 1]) < low)
            found |= 1u << lane;
    }
    return found;
}

/* Which elements the next 2 * LANES words keep. */
INLINE mask keep(const uint32_t *words, ptac_bound bound)
{
    const ints high = EPI32(set1)((int)bound.high);
    ints y = i_evens(i_load(words), i_load(words + LANES));
    mask less;
    uint32_t equal;

    y ^= EPI32(srli)(y, 11);
    y = i_xor_some(y, EPI32(slli)(y, 7), EPI32(set1)((int)0x9d2c5680u));
    y = i_xor_some(y, EPI32(slli)(y, 15), EPI32(set1)((int)0xefc60000u));
    y ^= EPI32(srli)(y, 18);
    y = EPI32(srli)(EPI32(slli)(y, 32 - PTAC_ENGINE_HIGH_BITS),
                    32 - PTAC_ENGINE_HIGH_BITS);
    less = k_less(y, high);
    equal = k_bits(k_equal(y, high));
    if (__builtin_expect(equal != 0, 0) && bound.low)
        less = k_from(k_bits(less) | kept_by_second(words, equal, bound.low));
    return less;
}

/* What becomes of an element. */
typedef struct sink {
    bool drops;                /* dropout; else bernoulli_() */
    const float *x, *residual; /* which may be NULL */
    float *y;
    unsigned char *kept; /* or NULL */
    float value;
} sink;

/* The next n, at most LANES. */
INLINE void put(const sink *to, int64_t i, mask k, int n)
{
    const vec value = v_pick(k, v_set(to->value), v_zero());

    if (to->drops) {
        vec y = v_mul(v_load_first(to->x + i, n), value);

        if (to->residual)
            y = v_add(y, v_load_first(to->residual + i, n));
        v_store_first(to->y + i, y, n);
        if (to->kept)
            k_put(to->kept + i, k, n);
    } else {
        v_store_first(to->y + i, value, n);
    }
}

/* n > 0 elements. */
INLINE void draw(ptac_engine *engine, double p, int64_t n, const sink *to)
{
    const ptac_bound bound = ptac_bound_of(p);
    block blocks[2];
    int now = 0, at = engine->left == 1 ? PTAC_ENGINE_WORDS : (int)engine->next;
    bool is_renewed = false;

    memcpy(blocks[0].words, engine->words, sizeof engine->words);
    for (int b = 0; b < 2; b++)
        memset(blocks[b].words + PTAC_ENGINE_WORDS, 0, 2 * LANES * sizeof(uint32_t));
    for (int64_t i = 0; i < n;) {
        const uint32_t *words = blocks[now].words;
        int count;

        if (at >= LAST) { /* too few for an element: one, or none */
            renew(words, blocks[!now].words);
            now = !now;
            is_renewed = true;
            at = at == LAST;
            if (at) {
                const uint32_t two[2 * LANES] = {words[LAST], blocks[now].words[0]};

                put(to, i++, keep(two, bound), 1);
            }
            continue;
        }
        count = (int)ptac_least(n - i, (PTAC_ENGINE_WORDS - at) / 2);
        for (; count >= LANES; count -= LANES, i += LANES, at += 2 * LANES)
            put(to, i, keep(words + at, bound), LANES);
        if (count > 0)
            put(to, i, keep(words + at, bound), count);
        i += count;
        at += 2 * count;
    }
    if (is_renewed)
        memcpy(engine->words, blocks[now].words, sizeof engine->words);
    engine->next = (uint32_t)at;
    engine->left = at == PTAC_ENGINE_WORDS ? 1 : PTAC_ENGINE_WORDS + 1 - at;
}

TARGET static ptac_status bernoulli(const ptac_call *call)
{
    const ptac_bernoulli *params = call->params;
    const sink to = {.y = call->outputs[0].data, .value = 1};

    if (call->outputs[0].n_elements > 0)
        draw(params->engine, params->p, call->outputs[0].n_elements, &to);
    return PTAC_OK;
}

TARGET static ptac_status dropout(const ptac_call *call)
{
    const ptac_dropout *params = call->params;
    const sink to = {
        .drops = true,
        .x = call->inputs[PTAC_DROPOUT_X].data,
        .residual = call->inputs[PTAC_DROPOUT_RESIDUAL].data,
        .y = call->outputs[PTAC_DROPOUT_Y].data,
        .kept = call->outputs[PTAC_DROPOUT_MASK].data,
        .value = 1 / (float)params->keep,
    };
    const int64_t n = call->inputs[PTAC_DROPOUT_X].n_elements;

    if (n > 0)
        draw(params->engine, params->keep, n, &to);
    return PTAC_OK;
}

TARGET static void drop_gradients(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const float *grad = call->inputs[0].data;
    const unsigned char *kept = call->inputs[1].data;
    const vec scale =
        v_set((float)((const ptac_dropout_backward *)call->params)->scale);
    float *out = call->outputs[0].data;

    FOR_LANES(i, n, begin, end,
              v_store_first(out + i,
                            v_mul(v_load_first(grad + i, n),
                                  v_pick(k_take(kept + i, n), scale, v_zero())),
                            n));
}

static ptac_status dropout_backward(const ptac_call *call)
{
    ptac_parallel_for(0, call->inputs[0].n_elements, 32768, drop_gradients,
                      (void *)(uintptr_t)call);
    return PTAC_OK;
}

PTAC_ROW(BERNOULLI, ISA, PTAC_EXACT, NEEDS, ptac_bernoulli_accepts, bernoulli)
PTAC_ROW(DROPOUT, ISA, PTAC_EXACT, NEEDS, ptac_dropout_accepts, dropout)
PTAC_ROW(DROPOUT_ADD, ISA, PTAC_EXACT, NEEDS, ptac_dropout_accepts, dropout)
PTAC_ROW(DROPOUT_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_dropout_accepts_gradient,
         dropout_backward)
