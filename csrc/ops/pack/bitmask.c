/*
 * bitmask.c - tensors of at most two values as bits: masks, and dropout's noise.
 */
#include "core/cpu.h"
#include "core/host.h"
#include "ops/pack/pack.h"

#include <stdatomic.h>

enum {
    GRAIN = 1 << 15, /* elements that are worth a thread */
    WORD = 64,       /* elements that are packed together: threads never share them */
};

/* What is done with elements of one width. */
typedef struct coder {
    void (*find_values)(const void *x, int64_t n, uint64_t values[2]);
    /* Elements [at, at + n), at most WORD; false where one is neither value. */
    bool (*pack_word)(const void *x, int64_t at, int n, const uint64_t values[2],
                      uint64_t *word);
    /* Elements [begin, end), of which the first begins a word. */
    void (*unpack)(const uint64_t *bits, const uint64_t values[2], int64_t begin,
                   int64_t end, void *x);
} coder;

#define T       uint8_t
#define NAME(f) f##_1
#include "ops/pack/pack_tpl.h"
#define T       uint16_t
#define NAME(f) f##_2
#include "ops/pack/pack_tpl.h"
#define T       uint32_t
#define NAME(f) f##_4
#include "ops/pack/pack_tpl.h"
#define T       uint64_t
#define NAME(f) f##_8
#include "ops/pack/pack_tpl.h"

static const coder of_width[] = {
    [1] = {find_values_1, pack_word_1, unpack_1},
    [2] = {find_values_2, pack_word_2, unpack_2},
    [4] = {find_values_4, pack_word_4, unpack_4},
    [8] = {find_values_8, pack_word_8, unpack_8},
};

#ifdef __x86_64__
#include "ops/math/lanes_avx512.h"

TARGET static bool pack_word_avx512(const void *elements, int64_t at, int n,
                                    const uint64_t values[2], uint64_t *word)
{
    const uint32_t *x = (const uint32_t *)elements + at;
    const __m512i is_low = _mm512_set1_epi32((int)values[0]);
    const __m512i is_high = _mm512_set1_epi32((int)values[1]);
    uint64_t found = 0;
    __mmask16 strange = 0;

    if (n < WORD)
        return pack_word_4(elements, at, n, values, word);
    for (int i = 0; i < 4; i++) {
        const __m512i v = _mm512_loadu_si512(x + 16 * i);
        const __mmask16 ones = _mm512_cmpeq_epi32_mask(v, is_high);

        strange |= _mm512_mask_cmpneq_epi32_mask((__mmask16)~ones, v, is_low);
        found |= (uint64_t)ones << (16 * i);
    }
    *word = found;
    return strange == 0;
}

TARGET static void unpack_avx512(const uint64_t *bits, const uint64_t values[2],
                                 int64_t begin, int64_t end, void *elements)
{
    const __m512i zeros = _mm512_set1_epi32((int)values[0]);
    const __m512i ones = _mm512_set1_epi32((int)values[1]);
    uint32_t *x = elements;
    int64_t at = begin;

    for (; at + WORD <= end; at += WORD) {
        const uint64_t word = bits[at / WORD];

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            _mm512_storeu_si512(
                x + at + 16 * i,
                _mm512_mask_blend_epi32((__mmask16)(word >> (16 * i)), zeros, ones));
    }
    unpack_4(bits, values, at, end, x);
}
#endif

static const coder *coder_of(int width)
{
#ifdef __x86_64__
    static const coder avx512 = {find_values_4, pack_word_avx512, unpack_avx512};

    if (width == 4 && ptac_cpu_features() & PTAC_CPU_AVX512)
        return &avx512;
#endif
    return &of_width[width];
}

typedef struct job {
    const void *x;
    void *out;
    uint64_t *bits;
    const uint64_t *values;
    int64_t n;
    const coder *by;
    atomic_bool failed;
} job;

static void pack_range(int64_t begin, int64_t end, void *context)
{
    job *j = context;

    for (int64_t w = begin; w < end; w++) {
        if (!j->by->pack_word(j->x, w * WORD, (int)ptac_least(j->n - w * WORD, WORD),
                              j->values, &j->bits[w])) {
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
            return;
        }
    }
}

bool ptac_pack_bitmask(const void *x, int64_t n, int width, uint64_t values[2],
                       uint64_t *bits)
{
    job j = {.x = x, .bits = bits, .values = values, .n = n, .by = coder_of(width)};

    j.by->find_values(x, n, values);
    ptac_parallel_for(0, ptac_parts(n, WORD), GRAIN / WORD, pack_range, &j);
    return !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

static void unpack_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    j->by->unpack(j->bits, j->values, begin * WORD, ptac_least(end * WORD, j->n),
                  j->out);
}

void ptac_unpack_bitmask(const uint64_t *bits, const uint64_t values[2], int64_t n,
                         int width, void *x)
{
    job j = {.out = x,
             .bits = (uint64_t *)bits,
             .values = values,
             .n = n,
             .by = coder_of(width)};

    ptac_parallel_for(0, ptac_parts(n, WORD), GRAIN / WORD, unpack_range, &j);
}
