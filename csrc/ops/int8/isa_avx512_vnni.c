/*
 * isa_avx512_vnni.c - int8 arithmetic by vpdpbusd, sixteen channels at a time.
 *
 * The inner loop is assembly: gcc 12 spilled the 24 sums of the same loop in intrinsics
 * and ran it at half of the speed.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"
#include "ops/int8/planes.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/*
 * A step takes 4 activations of each row and 64 bytes of each vector of channels. The
 * tile's registers:
 *
 *                      weights  zmm24   25      26      27
 *     row 0  r8   -> zmm28       zmm0    zmm1    zmm2    zmm3
 *     row 1  r9   -> zmm29       zmm4    zmm5    zmm6    zmm7
 *     ...
 *     row 5  r13  -> zmm29       zmm20   zmm21   zmm22   zmm23
 *
 * Rows count upwards to their segment's end, k from minus its bytes to zero. Weights
 * are asked for AHEAD bytes before they are needed.
 */
#define AHEAD "1536"

#define DOT(weights, row, sum)                                                         \
    "vpdpbusd %%zmm" #weights ", %%zmm" #row ", %%zmm" #sum "\n\t"
#define ROW_1(reg, row, a, b, c, d)                                                    \
    "vpbroadcastd (%%" #reg ", %[k]), %%zmm" #row "\n\t" DOT(24, row, a)
#define ROW_2(reg, row, a, b, c, d) ROW_1(reg, row, a, b, c, d) DOT(25, row, b)
#define ROW_3(reg, row, a, b, c, d) ROW_2(reg, row, a, b, c, d) DOT(26, row, c)
#define ROW_4(reg, row, a, b, c, d) ROW_3(reg, row, a, b, c, d) DOT(27, row, d)

#define ROWS_1(v) ROW_##v(r8, 28, 0, 1, 2, 3)
#define ROWS_2(v) ROWS_1(v) ROW_##v(r9, 29, 4, 5, 6, 7)
#define ROWS_3(v) ROWS_2(v) ROW_##v(r10, 30, 8, 9, 10, 11)
#define ROWS_4(v) ROWS_3(v) ROW_##v(r11, 31, 12, 13, 14, 15)
#define ROWS_5(v) ROWS_4(v) ROW_##v(r12, 28, 16, 17, 18, 19)
#define ROWS_6(v) ROWS_5(v) ROW_##v(r13, 29, 20, 21, 22, 23)

#define WEIGHT(i, offset)                                                              \
    "vmovdqu64 " #offset "(%[w]), %%zmm" #i "\n\t"                                     \
    "prefetcht0 " AHEAD "+" #offset "(%[w])\n\t"
#define WEIGHTS_1 WEIGHT(24, 0)
#define WEIGHTS_2 WEIGHTS_1 WEIGHT(25, 64)
#define WEIGHTS_3 WEIGHTS_2 WEIGHT(26, 128)
#define WEIGHTS_4 WEIGHTS_3 WEIGHT(27, 192)

/* Where a row's next segment ends. */
#define POINT(reg, offset)                                                             \
    "movq " #offset "(%[tile]), %%" #reg "\n\t"                                        \
    "addq %%rax, %%" #reg "\n\t"
#define POINTS_1 POINT(r8, 0)
#define POINTS_2 POINTS_1 POINT(r9, 8)
#define POINTS_3 POINTS_2 POINT(r10, 16)
#define POINTS_4 POINTS_3 POINT(r11, 24)
#define POINTS_5 POINTS_4 POINT(r12, 32)
#define POINTS_6 POINTS_5 POINT(r13, 40)

#define CLEAR(i)            "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n\t"
#define CLEAR_4(a, b, c, d) CLEAR(a) CLEAR(b) CLEAR(c) CLEAR(d)
#define CLEARS_1            CLEAR_4(0, 1, 2, 3)
#define CLEARS_2            CLEARS_1 CLEAR_4(4, 5, 6, 7)
#define CLEARS_3            CLEARS_2 CLEAR_4(8, 9, 10, 11)
#define CLEARS_4            CLEARS_3 CLEAR_4(12, 13, 14, 15)
#define CLEARS_5            CLEARS_4 CLEAR_4(16, 17, 18, 19)
#define CLEARS_6            CLEARS_5 CLEAR_4(20, 21, 22, 23)

#define KEEP(i, offset)         "vmovdqu64 %%zmm" #i ", " #offset "(%[sums])\n\t"
#define KEEP_1(row, a, b, c, d) KEEP(a, row * 256)
#define KEEP_2(row, a, b, c, d) KEEP_1(row, a, b, c, d) KEEP(b, row * 256 + 64)
#define KEEP_3(row, a, b, c, d) KEEP_2(row, a, b, c, d) KEEP(c, row * 256 + 128)
#define KEEP_4(row, a, b, c, d) KEEP_3(row, a, b, c, d) KEEP(d, row * 256 + 192)
#define KEEPS_1(v)              KEEP_##v(0, 0, 1, 2, 3)
#define KEEPS_2(v)              KEEPS_1(v) KEEP_##v(1, 4, 5, 6, 7)
#define KEEPS_3(v)              KEEPS_2(v) KEEP_##v(2, 8, 9, 10, 11)
#define KEEPS_4(v)              KEEPS_3(v) KEEP_##v(3, 12, 13, 14, 15)
#define KEEPS_5(v)              KEEPS_4(v) KEEP_##v(4, 16, 17, 18, 19)
#define KEEPS_6(v)              KEEPS_5(v) KEEP_##v(5, 20, 21, 22, 23)

#define TILE(r, v)                                                                     \
    TARGET static void sum_##r##x##v(const ptac_tile *tile, int32_t *sums)             \
    {                                                                                  \
        const int8_t *w = tile->panel;                                                 \
        const int64_t *segment = tile->segments;                                       \
        const int64_t *end = segment + tile->n_segments;                               \
        const int64_t bytes = tile->n_quads * PTAC_QUAD;                               \
        int64_t k;                                                                     \
                                                                                       \
        __asm__ volatile(                                                              \
            CLEARS_##r "1:\n\t"                                                        \
                       "movq (%[segment]), %%rax\n\t"                                  \
                       "addq %[bytes], %%rax\n\t" POINTS_##r                           \
            "movq %[bytes], %[k]\n\t"                                                  \
            "negq %[k]\n\t"                                                            \
            ".p2align 5\n"                                                             \
            "2:\n\t" WEIGHTS_##v ROWS_##r(v) "addq $64 * " #v ", %[w]\n\t"             \
                                             "addq $4, %[k]\n\t"                       \
                                             "jnz 2b\n\t"                              \
                                             "addq $8, %[segment]\n\t"                 \
                                             "cmpq %[end], %[segment]\n\t"             \
                                             "jne 1b\n\t" KEEPS_##r(v)                 \
            : [w] "+&r"(w), [segment] "+&r"(segment), [k] "=&r"(k)                     \
            : [tile] "r"(tile->rows), [sums] "r"(sums), [end] "r"(end),                \
              [bytes] "r"(bytes)                                                       \
            : "memory", "cc", "rax", "r8", "r9", "r10", "r11", "r12", "r13", ZMM);     \
    }
#define ZMM                                                                            \
    "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9",    \
        "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17",        \
        "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25",        \
        "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31"

#define TILES(v) TILE(1, v) TILE(2, v) TILE(3, v) TILE(4, v) TILE(5, v) TILE(6, v)
TILES(1)
TILES(2)
TILES(3)
TILES(4)

static void sum(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums)
{
#define OF(v)                                                                          \
    {                                                                                  \
        sum_1x##v, sum_2x##v, sum_3x##v, sum_4x##v, sum_5x##v, sum_6x##v               \
    }
    static void (*const tiles[4][PTAC_TILE_ROWS])(const ptac_tile *, int32_t *) = {
        OF(1), OF(2), OF(3), OF(4)};

    tiles[n_vectors - 1][n_rows - 1](tile, sums);
}

/* The lanes that are left at column n. */
TARGET static inline __mmask16 lanes_from(int n, int n_columns)
{
    return n_columns - n >= PTAC_LANES ? 0xffff
                                       : (__mmask16)((1u << (n_columns - n)) - 1);
}

/* max(0, y) where asked for; the order of the operands keeps NaN. */
TARGET static inline __m512 activate(const ptac_epilogue *e, __m512 y)
{
    return e->relu ? _mm512_max_ps(_mm512_setzero_ps(), y) : y;
}

TARGET static void finish(const ptac_epilogue *e, const int32_t *sums, int n_rows,
                          const ptac_row_scale *rows, float *y, int64_t y_stride)
{
    for (int n = 0; n < e->n_columns; n += PTAC_LANES) {
        const __mmask16 lanes = lanes_from(n, e->n_columns);
        const __m512i column = _mm512_maskz_loadu_epi32(lanes, e->column_sums + n);
        const __m512 scale = _mm512_maskz_loadu_ps(lanes, e->column_scales + n);
        const __m512 bias =
            e->bias ? _mm512_maskz_loadu_ps(lanes, e->bias + n) : _mm512_setzero_ps();

        for (int r = 0; r < n_rows; r++) {
            const __m512i zero = _mm512_set1_epi32(rows[r].zero);
            const __m512i exact =
                _mm512_sub_epi32(_mm512_loadu_si512(sums + r * PTAC_PANEL + n),
                                 _mm512_mullo_epi32(column, zero));
            const __m512 both = _mm512_mul_ps(_mm512_set1_ps(rows[r].scale), scale);

            _mm512_mask_storeu_ps(
                y + r * y_stride + n, lanes,
                activate(e, _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), both, bias)));
        }
    }
}

TARGET static __m512 exact_sum(const int32_t *sums, __m512i column, int32_t zero)
{
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(
        _mm512_loadu_si512(sums), _mm512_mullo_epi32(column, _mm512_set1_epi32(zero))));
}

TARGET static void finish16(const ptac_epilogue *e, const int32_t *sums,
                            ptac_row_scale row, float *y)
{
    for (int n = 0; n < e->n_columns; n += PTAC_LANES) {
        const __mmask16 lanes = lanes_from(n, e->n_columns);
        const __m512i column = _mm512_maskz_loadu_epi32(lanes, e->column_sums + n);
        const __m512 scale = _mm512_maskz_loadu_ps(lanes, e->column_scales + n);
        const __m512 bias =
            e->bias ? _mm512_maskz_loadu_ps(lanes, e->bias + n) : _mm512_setzero_ps();
        const __m512 exact = _mm512_fmadd_ps(
            _mm512_set1_ps(256.0f), exact_sum(sums + n, column, row.zero >> 8),
            exact_sum(sums + PTAC_PANEL + n, column, row.zero & 255));

        _mm512_mask_storeu_ps(
            y + n, lanes,
            activate(e, _mm512_fmadd_ps(exact,
                                        _mm512_mul_ps(_mm512_set1_ps(row.scale), scale),
                                        bias)));
    }
}

/* Three sums of a range, lane by lane. */
typedef struct lane_range {
    __m512 lo, hi, poison;
} lane_range;

TARGET static inline void widen(lane_range *range, __m512 v)
{
    range->lo = _mm512_min_ps(range->lo, v);
    range->hi = _mm512_max_ps(range->hi, v);
    range->poison = _mm512_fmadd_ps(v, _mm512_setzero_ps(), range->poison);
}

TARGET static void gather(const lane_range *a, const lane_range *b, ptac_range *range)
{
    const float lo = _mm512_reduce_min_ps(_mm512_min_ps(a->lo, b->lo));
    const float hi = _mm512_reduce_max_ps(_mm512_max_ps(a->hi, b->hi));

    range->lo = lo < range->lo ? lo : range->lo;
    range->hi = hi > range->hi ? hi : range->hi;
    range->poison += _mm512_reduce_add_ps(_mm512_add_ps(a->poison, b->poison));
}

/* Bytes of x that are asked for before they are needed: half of a page. */
enum { AHEAD_OF_X = 2048 };

/* Two at a time: what one waits for, the other does. */
TARGET static void measure(const float *x, int64_t n, ptac_range *range)
{
    const __m512 none = _mm512_setzero_ps();
    lane_range a = {none, none, none}, b = a;
    int64_t i = 0;

    for (; i + 2 * PTAC_LANES <= n; i += 2 * PTAC_LANES) {
        _mm_prefetch((const char *)(x + i) + AHEAD_OF_X, _MM_HINT_T0);
        _mm_prefetch((const char *)(x + i + PTAC_LANES) + AHEAD_OF_X, _MM_HINT_T0);
        widen(&a, _mm512_loadu_ps(x + i));
        widen(&b, _mm512_loadu_ps(x + i + PTAC_LANES));
    }
    for (; i < n; i += PTAC_LANES) {
        const int left = n - i < PTAC_LANES ? (int)(n - i) : PTAC_LANES;

        widen(&a, _mm512_maskz_loadu_ps(lanes_from(0, left), x + i));
    }

    gather(&a, &b, range);
}

/* round(fma(x, inverse, zero)), not below 0. */
TARGET static inline __m512i round_to(__m512 x, __m512 inverse, __m512 zero)
{
    return _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_fmadd_ps(x, inverse, zero)),
                            _mm512_setzero_si512());
}

TARGET static void quantize(const float *x, int64_t n, float inverse, float zero,
                            uint8_t *q)
{
    const __m512 by = _mm512_set1_ps(inverse), from = _mm512_set1_ps(zero);
    int64_t i = 0;

    for (; i + PTAC_LANES <= n; i += PTAC_LANES)
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtusepi32_epi8(round_to(
                                                 _mm512_loadu_ps(x + i), by, from)));
    if (i < n) {
        const __mmask16 lanes = lanes_from(0, (int)(n - i));
        const int filled = (int)ptac_quads(n - i) * PTAC_QUAD;

        _mm_mask_storeu_epi8(q + i, lanes_from(0, filled),
                             _mm512_cvtusepi32_epi8(round_to(
                                 _mm512_maskz_loadu_ps(lanes, x + i), by, from)));
    }
}

TARGET static void quantize16(const float *x, int64_t n, float inverse, float zero,
                              uint8_t *high, uint8_t *low)
{
    const __m512 by = _mm512_set1_ps(inverse), from = _mm512_set1_ps(zero);
    const __m512i most = _mm512_set1_epi32(65535);

    for (int64_t i = 0; i < n; i += PTAC_LANES) {
        const int left = n - i < PTAC_LANES ? (int)(n - i) : PTAC_LANES;
        const __mmask16 filled = lanes_from(0, (int)ptac_quads(left) * PTAC_QUAD);
        const __m512i q = _mm512_min_epi32(
            round_to(_mm512_maskz_loadu_ps(lanes_from(0, left), x + i), by, from),
            most);

        _mm_mask_storeu_epi8(high + i, filled,
                             _mm512_cvtepi32_epi8(_mm512_srli_epi32(q, 8)));
        _mm_mask_storeu_epi8(low + i, filled, _mm512_cvtepi32_epi8(q));
    }
}

const ptac_int8_isa ptac_int8_avx512_vnni = {
    .sum = sum,
    .finish = finish,
    .finish16 = finish16,
    .measure = measure,
    .quantize = quantize,
    .quantize16 = quantize16,
    .quantize_planes = ptac_quantize_planes_avx512,
    .store_planes = ptac_store_planes_avx512,
    .pick = ptac_pick_avx512,
};
#endif
