/*
 * isa_avx2.c - int8 arithmetic without dot products of bytes.
 *
 * Sums are of pairs of 16-bit products (vpmaddwd), which are exact. Those of bytes
 * (vpmaddubsw) would take half as long and saturate: 255 * 127 * 2 has 17 bits.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"
#include "ops/math/lanes_avx2.h"

/*
 * Bytes become 16 bits where they are: even ones by shifting up and down or a mask, odd
 * ones by shifting down. ymm12 and 13 have the even and odd weights of 8 channels; the
 * activations were taken apart before, odd ones ODD bytes behind the even ones.
 */
#define ODD "128"
#define WEIGHTS(offset)                                                                \
    "vmovdqu " #offset "(%[w]), %%ymm12\n\t"                                           \
    "vpsraw $8, %%ymm12, %%ymm13\n\t"                                                  \
    "vpsllw $8, %%ymm12, %%ymm12\n\t"                                                  \
    "vpsraw $8, %%ymm12, %%ymm12\n\t"
#define DOT(row, sum)                                                                  \
    "vpbroadcastd (%%" #row ", %[k]), %%ymm14\n\t"                                     \
    "vpbroadcastd " ODD "(%%" #row ", %[k]), %%ymm15\n\t"                              \
    "vpmaddwd %%ymm12, %%ymm14, %%ymm14\n\t"                                           \
    "vpmaddwd %%ymm13, %%ymm15, %%ymm15\n\t"                                           \
    "vpaddd %%ymm14, %%ymm" #sum ", %%ymm" #sum "\n\t"                                 \
    "vpaddd %%ymm15, %%ymm" #sum ", %%ymm" #sum "\n\t"
#define DOT_LEFT(i, row, a, b)  DOT(row, a)
#define DOT_RIGHT(i, row, a, b) DOT(row, b)
#define STEP(EACH)              WEIGHTS(0) EACH(DOT_LEFT) WEIGHTS(32) EACH(DOT_RIGHT)

enum {
    CHUNK = 32,
    PLANE = CHUNK * PTAC_QUAD, /* ODD */
};

typedef struct chunk {
    const uint8_t *ends[PTAC_TILE_ROWS];
    _Alignas(32) uint8_t rows[PTAC_TILE_ROWS][2 * PLANE]; /* even ones, odd ones */
} chunk;

TARGET static void prepare(chunk *c, int r, const uint8_t *row, int64_t n_quads)
{
    const __m256i low = _mm256_set1_epi16(255);
    uint8_t *to = c->rows[r];

    for (int64_t i = 0; i < n_quads; i += LANES, to += LANES * PTAC_QUAD) {
        const int64_t left = n_quads - i;
        const __m256i q =
            left < LANES
                ? _mm256_maskload_epi32((const int *)row + i, first_lanes((int)left))
                : _mm256_loadu_si256((const __m256i *)((const int *)row + i));

        _mm256_store_si256((__m256i *)to, _mm256_and_si256(q, low));
        _mm256_store_si256((__m256i *)(to + PLANE), _mm256_srli_epi16(q, 8));
    }
    c->ends[r] = c->rows[r] + n_quads * PTAC_QUAD;
}

#include "ops/int8/sum_ymm_tpl.h"

#define FETCH(p, bytes) ((void)(p))

/* Eight integers as bytes, saturated, in the low half. */
INLINE __m128i bytes_of(__m256i q)
{
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));

    return _mm_packus_epi16(words, words);
}

/* The first n bytes and what fills up their quad. */
INLINE void store_bytes(uint8_t *to, __m128i bytes, int n)
{
    if (n > PTAC_QUAD)
        _mm_storel_epi64((__m128i *)to, bytes);
    else
        _mm_storeu_si32(to, bytes);
}

INLINE void store_low_bytes(uint8_t *to, ints q, int n)
{
    store_bytes(to, bytes_of(_mm256_and_si256(q, EPI32(set1)(255))), n);
}

#include "ops/int8/isa_tpl.h"
#include "ops/int8/planes_tpl.h"
#include "ops/int8/sublayer/rows_tpl.h"

TARGET static void quantize(const float *x, int64_t n, float inverse, float zero,
                            uint8_t *q)
{
    const vec by = v_set(inverse), from = v_set(zero);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int64_t i = 0;

    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        const __m256i ab = _mm256_packs_epi32(round_to(v_load(x + i), by, from),
                                              round_to(v_load(x + i + 8), by, from));
        const __m256i cd = _mm256_packs_epi32(round_to(v_load(x + i + 16), by, from),
                                              round_to(v_load(x + i + 24), by, from));

        _mm256_storeu_si256(
            (__m256i *)(q + i),
            _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order));
    }
    for (; i < n; i += LANES) {
        const int left = at_most_lanes(n - i);

        store_bytes(q + i, bytes_of(round_to(v_load_first(x + i, left), by, from)),
                    left);
    }
}

const ptac_int8_isa ptac_int8_avx2 = {
    PTAC_INT8_MEMBERS,
    .pick = ptac_int8_pick,
};
#endif
