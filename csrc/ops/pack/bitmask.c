/*
 * bitmask.c - tensors of at most two values as bits: masks, and dropout's noise.
 */
#include "core/cpu.h"
#include "core/host.h"
#include "ops/pack/pack.h"

#include <stdatomic.h>

enum {
    GRAIN = 1 << 15, /* elements that are worth a thread */
    WORD = 64,
};

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

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

AVX512 static bool pack_word_avx512(const uint32_t *x, uint32_t low, uint32_t high,
                                    uint64_t *word)
{
    const __m512i is_low = _mm512_set1_epi32((int)low);
    const __m512i is_high = _mm512_set1_epi32((int)high);
    uint64_t found = 0;
    __mmask16 strange = 0;

    for (int i = 0; i < 4; i++) {
        const __m512i v = _mm512_loadu_si512(x + 16 * i);
        const __mmask16 ones = _mm512_cmpeq_epi32_mask(v, is_high);

        strange |= _mm512_mask_cmpneq_epi32_mask((__mmask16)~ones, v, is_low);
        found |= (uint64_t)ones << (16 * i);
    }
    *word = found;
    return strange == 0;
}

AVX512 static void unpack_word_avx512(uint64_t word, uint32_t low, uint32_t high,
                                      uint32_t *x)
{
    const __m512i zeros = _mm512_set1_epi32((int)low);
    const __m512i ones = _mm512_set1_epi32((int)high);

    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(
            x + 16 * i,
            _mm512_mask_blend_epi32((__mmask16)(word >> (16 * i)), zeros, ones));
}

static bool has_avx512(void)
{
    return ptac_cpu_features() & PTAC_CPU_AVX512;
}
#else
static bool pack_word_avx512(const uint32_t *x, uint32_t low, uint32_t high,
                             uint64_t *word)
{
    return pack_word_4(x, WORD, low, high, word);
}

static void unpack_word_avx512(uint64_t word, uint32_t low, uint32_t high, uint32_t *x)
{
    const uint64_t values[2] = {low, high};

    unpack_words_4(&word, values, 0, WORD, x);
}

static bool has_avx512(void)
{
    return false;
}
#endif

typedef struct job {
    const void *x;
    void *out;
    uint64_t *bits;
    const uint64_t *values;
    int64_t n;
    int width;
    bool wide;
    atomic_bool failed;
} job;

static bool pack_word(const job *j, int64_t w)
{
    const int64_t at = w * WORD;
    const int n = (int)(j->n - at < WORD ? j->n - at : WORD);
    const uint64_t low = j->values[0], high = j->values[1];

    switch (j->width) {
    case 1:
        return pack_word_1((const uint8_t *)j->x + at, n, (uint8_t)low, (uint8_t)high,
                           &j->bits[w]);
    case 2:
        return pack_word_2((const uint16_t *)j->x + at, n, (uint16_t)low,
                           (uint16_t)high, &j->bits[w]);
    case 4:
        if (j->wide && n == WORD)
            return pack_word_avx512((const uint32_t *)j->x + at, (uint32_t)low,
                                    (uint32_t)high, &j->bits[w]);
        return pack_word_4((const uint32_t *)j->x + at, n, (uint32_t)low,
                           (uint32_t)high, &j->bits[w]);
    default:
        return pack_word_8((const uint64_t *)j->x + at, n, low, high, &j->bits[w]);
    }
}

static void pack_range(int64_t begin, int64_t end, void *context)
{
    job *j = context;

    for (int64_t w = begin; w < end; w++) {
        if (!pack_word(j, w)) {
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
            return;
        }
    }
}

bool ptac_pack_bitmask(const void *x, int64_t n, int width, uint64_t values[2],
                       uint64_t *bits)
{
    job j = {.x = x, .bits = bits, .values = values, .n = n, .width = width};

    switch (width) {
    case 1:
        find_values_1(x, n, values);
        break;
    case 2:
        find_values_2(x, n, values);
        break;
    case 4:
        find_values_4(x, n, values);
        break;
    default:
        find_values_8(x, n, values);
    }
    j.wide = has_avx512();
    ptac_parallel_for(0, (n + WORD - 1) / WORD, GRAIN / WORD, pack_range, &j);
    return !atomic_load_explicit(&j.failed, memory_order_relaxed);
}

static void unpack_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    const int64_t first = begin * WORD, last = end * WORD < j->n ? end * WORD : j->n;

    switch (j->width) {
    case 1:
        unpack_words_1(j->bits, j->values, first, last, j->out);
        break;
    case 2:
        unpack_words_2(j->bits, j->values, first, last, j->out);
        break;
    case 4:
        if (j->wide) {
            uint32_t *x = j->out;
            int64_t w = begin;

            for (; w < end && (w + 1) * WORD <= j->n; w++)
                unpack_word_avx512(j->bits[w], (uint32_t)j->values[0],
                                   (uint32_t)j->values[1], x + w * WORD);
            unpack_words_4(j->bits, j->values, w * WORD, last, x);
        } else {
            unpack_words_4(j->bits, j->values, first, last, j->out);
        }
        break;
    default:
        unpack_words_8(j->bits, j->values, first, last, j->out);
    }
}

void ptac_unpack_bitmask(const uint64_t *bits, const uint64_t values[2], int64_t n,
                         int width, void *x)
{
    job j = {
        .out = x, .bits = (uint64_t *)bits, .values = values, .n = n, .width = width};

    j.wide = has_avx512();
    ptac_parallel_for(0, (n + WORD - 1) / WORD, GRAIN / WORD, unpack_range, &j);
}
