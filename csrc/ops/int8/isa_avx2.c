/*
 * isa_avx2.c - int8 arithmetic without dot products of bytes.
 *
 * Sums are of pairs of 16-bit products (vpmaddwd), which are exact. Those of bytes
 * (vpmaddubsw) would take half as long and saturate: 255 * 127 * 2 has 17 bits.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"
#include "ops/int8/planes.h"
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

static inline int at_most_lanes(int64_t n)
{
    return n < LANES ? (int)n : LANES;
}

INLINE __m256i load_first(const int32_t *p, int n)
{
    return n < LANES ? _mm256_maskload_epi32(p, first_lanes(n))
                     : _mm256_loadu_si256((const __m256i *)p);
}

/* What the columns from n on need. */
typedef struct columns {
    int n;
    __m256i sums;
    vec scale, bias;
    bool relu;
} columns;

INLINE columns columns_from(const ptac_epilogue *e, int n)
{
    const int left = at_most_lanes(e->n_columns - n);

    return (columns){
        .n = left,
        .sums = load_first(e->column_sums + n, left),
        .scale = v_load_first(e->column_scales + n, left),
        .bias = e->bias ? v_load_first(e->bias + n, left) : v_zero(),
        .relu = e->relu,
    };
}

/* float(sum - zero * column sum) */
INLINE vec exact(const columns *c, const int32_t *sums, int32_t zero)
{
    const __m256i off = _mm256_mullo_epi32(c->sums, _mm256_set1_epi32(zero));

    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)sums), off));
}

/* max(0, y) where asked for; the order of the operands keeps NaN. */
INLINE void store(const columns *c, vec sums, float row_scale, float *y)
{
    const vec v = v_fma(sums, v_mul(v_set(row_scale), c->scale), c->bias);

    v_store_first(y, c->relu ? v_max(v_zero(), v) : v, c->n);
}

TARGET static void finish(const ptac_epilogue *e, const int32_t *sums, int n_rows,
                          const ptac_row_scale *rows, float *y, int64_t y_stride)
{
    for (int n = 0; n < e->n_columns; n += LANES) {
        const columns c = columns_from(e, n);

        for (int r = 0; r < n_rows; r++)
            store(&c, exact(&c, sums + r * PTAC_PANEL + n, rows[r].zero), rows[r].scale,
                  y + r * y_stride + n);
    }
}

TARGET static void finish16(const ptac_epilogue *e, const int32_t *sums,
                            ptac_row_scale row, float *y)
{
    for (int n = 0; n < e->n_columns; n += LANES) {
        const columns c = columns_from(e, n);
        const vec high = exact(&c, sums + n, row.zero >> 8);
        const vec low = exact(&c, sums + PTAC_PANEL + n, row.zero & 255);

        store(&c, v_fma(v_set(256.0f), high, low), row.scale, y + n);
    }
}

typedef struct lane_range {
    vec lo, hi, poison;
} lane_range;

INLINE void widen(lane_range *range, vec v)
{
    range->lo = v_min(range->lo, v);
    range->hi = v_max(range->hi, v);
    range->poison = v_fma(v, v_zero(), range->poison);
}

/* Two at a time: what one waits for, the other does. */
TARGET static void measure(const float *x, int64_t n, ptac_range *range)
{
    lane_range a = {v_zero(), v_zero(), v_zero()}, b = a;
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        widen(&a, v_load(x + i));
        widen(&b, v_load(x + i + LANES));
    }
    for (; i < n; i += LANES)
        widen(&a, v_load_first(x + i, at_most_lanes(n - i)));

    const float lo = -v_largest(v_sub(v_zero(), v_min(a.lo, b.lo)));
    const float hi = v_largest(v_max(a.hi, b.hi));

    range->lo = lo < range->lo ? lo : range->lo;
    range->hi = hi > range->hi ? hi : range->hi;
    range->poison += v_sum(v_add(a.poison, b.poison));
}

/* round(fma(x, by, from)); NaN becomes the least integer. */
INLINE __m256i round_to(vec x, vec by, vec from)
{
    return _mm256_cvtps_epi32(v_fma(x, by, from));
}

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

TARGET static void quantize16(const float *x, int64_t n, float inverse, float zero,
                              uint8_t *high, uint8_t *low)
{
    const vec by = v_set(inverse), from = v_set(zero);
    const __m256i least = _mm256_setzero_si256(), most = _mm256_set1_epi32(65535);

    for (int64_t i = 0; i < n; i += LANES) {
        const int left = at_most_lanes(n - i);
        const __m256i q = _mm256_min_epi32(
            _mm256_max_epi32(round_to(v_load_first(x + i, left), by, from), least),
            most);

        store_bytes(high + i, bytes_of(_mm256_srli_epi32(q, 8)), left);
        store_bytes(low + i, bytes_of(_mm256_and_si256(q, _mm256_set1_epi32(255))),
                    left);
    }
}

const ptac_int8_isa ptac_int8_avx2 = {
    .sum = sum,
    .finish = finish,
    .finish16 = finish16,
    .measure = measure,
    .quantize = quantize,
    .quantize16 = quantize16,
    .quantize_planes = ptac_quantize_planes_avx2,
    .store_planes = ptac_store_planes_avx2,
    .pick = ptac_pick_scalar,
};
#endif
