/*
 * nonzero.c - tensors with many zeros as bits and the other elements: what ReLU gives,
 * probabilities behind a causal mask.
 */
#include "core/cpu.h"
#include "core/host.h"
#include "ops/pack/pack.h"

#include <stdatomic.h>
#include <string.h>

enum {
    GRAIN = 8, /* chunks that are worth a thread */
    WORD = 64,
    AHEAD = 2048, /* bytes of values to fetch early: no CPU foresees masked loads */
};

/* Counts, or packs and unpacks at most WORD elements; gives how many are not 0. */
typedef struct coder {
    int64_t (*count)(const uint32_t *x, int64_t n);
    int64_t (*pack)(const uint32_t *x, int n, uint64_t *word, uint32_t *values);
    int64_t (*unpack)(uint64_t word, const uint32_t *values, int n, uint32_t *x);
} coder;

static int64_t count_scalar(const uint32_t *x, int64_t n)
{
    int64_t count = 0;

    for (int64_t i = 0; i < n; i++)
        count += x[i] != 0;
    return count;
}

static int64_t pack_scalar(const uint32_t *x, int n, uint64_t *word, uint32_t *values)
{
    uint64_t found = 0;
    int64_t k = 0;

    for (int i = 0; i < n; i++) {
        if (x[i]) {
            found |= (uint64_t)1 << i;
            values[k++] = x[i];
        }
    }
    *word = found;
    return k;
}

static int64_t unpack_scalar(uint64_t word, const uint32_t *values, int n, uint32_t *x)
{
    int64_t k = 0;

    memset(x, 0, (size_t)n * sizeof *x);
    for (; word; word &= word - 1)
        x[__builtin_ctzll(word)] = values[k++];
    return k;
}

#ifdef __x86_64__
#include "ops/math/lanes_avx512.h"

TARGET static int64_t count_avx512(const uint32_t *x, int64_t n)
{
    int64_t count = 0, i = 0;

    for (; i + 16 <= n; i += 16) {
        const __m512i v = _mm512_loadu_si512(x + i);

        count += _mm_popcnt_u32(_mm512_test_epi32_mask(v, v));
    }
    return count + count_scalar(x + i, n - i);
}

TARGET static int64_t pack_avx512(const uint32_t *x, int n_elements, uint64_t *word,
                                  uint32_t *values)
{
    uint64_t found = 0;
    int64_t k = 0;

    if (n_elements < WORD)
        return pack_scalar(x, n_elements, word, values);
    for (int i = 0; i < 4; i++) {
        const __m512i v = _mm512_loadu_si512(x + 16 * i);
        const __mmask16 some = _mm512_test_epi32_mask(v, v);
        const int n = _mm_popcnt_u32(some);

        /* Compressing in a register: compressing stores are slow on some CPUs. */
        _mm512_mask_storeu_epi32(values + k, (__mmask16)((1u << n) - 1),
                                 _mm512_maskz_compress_epi32(some, v));
        found |= (uint64_t)some << (16 * i);
        k += n;
    }
    *word = found;
    return k;
}

TARGET static int64_t unpack_avx512(uint64_t word, const uint32_t *values,
                                    int n_elements, uint32_t *x)
{
    int64_t k = 0;

    if (n_elements < WORD)
        return unpack_scalar(word, values, n_elements, x);
    for (int i = 0; i < 4; i++) {
        const __mmask16 some = (__mmask16)(word >> (16 * i));
        const int n = _mm_popcnt_u32(some);
        const __m512i v =
            _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), values + k);

        _mm_prefetch((const void *)((uintptr_t)(values + k) + AHEAD), _MM_HINT_T0);
        _mm512_storeu_si512(x + 16 * i, _mm512_maskz_expand_epi32(some, v));
        k += n;
    }
    return k;
}

#endif

static const coder *best_coder(void)
{
    static const coder scalar = {count_scalar, pack_scalar, unpack_scalar};
#ifdef __x86_64__
    static const coder avx512 = {count_avx512, pack_avx512, unpack_avx512};

    if (ptac_cpu_features() & PTAC_CPU_AVX512)
        return &avx512;
#endif
    return &scalar;
}

typedef struct job {
    const uint32_t *x;
    uint32_t *out;
    uint64_t *bits;
    uint32_t *values;
    int64_t *starts;
    int64_t n;
    const coder *by;
    atomic_bool changed;
} job;

int64_t ptac_pack_chunks(int64_t n)
{
    return ptac_parts(n, PTAC_PACK_CHUNK);
}

static int64_t end_of(const job *j, int64_t chunk)
{
    return ptac_least((chunk + 1) * PTAC_PACK_CHUNK, j->n);
}

static void count_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    for (int64_t c = begin; c < end; c++) {
        const uint32_t *x = j->x + c * PTAC_PACK_CHUNK;
        const int64_t n = end_of(j, c) - c * PTAC_PACK_CHUNK;

        j->starts[c + 1] = j->by->count(x, n);
    }
}

int64_t ptac_pack_count(const uint32_t *x, int64_t n, int64_t *starts)
{
    job j = {.x = x, .starts = starts, .n = n, .by = best_coder()};
    const int64_t n_chunks = ptac_pack_chunks(n);

    starts[0] = 0;
    ptac_parallel_for(0, n_chunks, GRAIN, count_range, &j);
    for (int64_t c = 0; c < n_chunks; c++)
        starts[c + 1] += starts[c];
    return starts[n_chunks];
}

/* Whether there are as many as were counted; never writes more. */
static bool pack_chunk(const job *j, int64_t c)
{
    uint32_t *values = j->values + j->starts[c], spare[WORD];
    const uint32_t *const end = j->values + j->starts[c + 1];
    const int64_t last = end_of(j, c);

    for (int64_t i = c * PTAC_PACK_CHUNK; i < last; i += WORD) {
        const int n = (int)ptac_least(last - i, WORD);
        const bool fits = end - values >= WORD;
        uint32_t *to = fits ? values : spare;
        const int64_t k = j->by->pack(j->x + i, n, &j->bits[i / WORD], to);

        if (!fits) {
            if (k > end - values)
                return false;
            memcpy(values, spare, (size_t)k * sizeof *values);
        }
        values += k;
    }
    return values == end;
}

static void pack_range(int64_t begin, int64_t end, void *context)
{
    job *j = context;

    for (int64_t c = begin; c < end; c++) {
        if (!pack_chunk(j, c)) {
            atomic_store_explicit(&j->changed, true, memory_order_relaxed);
            return;
        }
    }
}

bool ptac_pack_nonzero(const uint32_t *x, int64_t n, const int64_t *starts,
                       uint64_t *bits, uint32_t *values)
{
    job j = {.x = x,
             .n = n,
             .starts = (int64_t *)starts,
             .bits = bits,
             .values = values,
             .by = best_coder()};

    ptac_parallel_for(0, ptac_pack_chunks(n), GRAIN, pack_range, &j);
    return !atomic_load_explicit(&j.changed, memory_order_relaxed);
}

static void unpack_range(int64_t begin, int64_t end, void *context)
{
    const job *j = context;

    for (int64_t c = begin; c < end; c++) {
        const uint32_t *values = j->values + j->starts[c];
        const int64_t last = end_of(j, c);

        for (int64_t i = c * PTAC_PACK_CHUNK; i < last; i += WORD) {
            const int n = (int)ptac_least(last - i, WORD);

            values += j->by->unpack(j->bits[i / WORD], values, n, j->out + i);
        }
    }
}

void ptac_unpack_nonzero(const uint64_t *bits, const uint32_t *values,
                         const int64_t *starts, int64_t n, uint32_t *x)
{
    job j = {.out = x,
             .n = n,
             .starts = (int64_t *)starts,
             .bits = (uint64_t *)bits,
             .values = (uint32_t *)values,
             .by = best_coder()};

    ptac_parallel_for(0, ptac_pack_chunks(n), GRAIN, unpack_range, &j);
}
