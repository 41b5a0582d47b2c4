/*
 * isa_avx512_vnni.c - int8 arithmetic by vpdpbusd, sixteen channels at a time.
 *
 * The inner loop is assembly: gcc 12 spilled the 24 sums of the same loop in intrinsics
 * and ran it at half of the speed.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"
#include "ops/math/lanes_avx512.h"

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

/* EACH_r(DO) is DO(i, register, activations, four sums) for each of r rows. */
#define EACH_1(DO) DO(0, r8, 28, 0, 1, 2, 3)
#define EACH_2(DO) EACH_1(DO) DO(1, r9, 29, 4, 5, 6, 7)
#define EACH_3(DO) EACH_2(DO) DO(2, r10, 30, 8, 9, 10, 11)
#define EACH_4(DO) EACH_3(DO) DO(3, r11, 31, 12, 13, 14, 15)
#define EACH_5(DO) EACH_4(DO) DO(4, r12, 28, 16, 17, 18, 19)
#define EACH_6(DO) EACH_5(DO) DO(5, r13, 29, 20, 21, 22, 23)

#define DOT(weights, row, sum)                                                         \
    "vpdpbusd %%zmm" #weights ", %%zmm" #row ", %%zmm" #sum "\n\t"
#define ROW_1(i, reg, row, a, b, c, d)                                                 \
    "vpbroadcastd (%%" #reg ", %[k]), %%zmm" #row "\n\t" DOT(24, row, a)
#define ROW_2(i, reg, row, a, b, c, d) ROW_1(i, reg, row, a, b, c, d) DOT(25, row, b)
#define ROW_3(i, reg, row, a, b, c, d) ROW_2(i, reg, row, a, b, c, d) DOT(26, row, c)
#define ROW_4(i, reg, row, a, b, c, d) ROW_3(i, reg, row, a, b, c, d) DOT(27, row, d)

#define WEIGHT(i, offset)                                                              \
    "vmovdqu64 " #offset "(%[w]), %%zmm" #i "\n\t"                                     \
    "prefetcht0 " AHEAD "+" #offset "(%[w])\n\t"
#define WEIGHTS_1 WEIGHT(24, 0)
#define WEIGHTS_2 WEIGHTS_1 WEIGHT(25, 64)
#define WEIGHTS_3 WEIGHTS_2 WEIGHT(26, 128)
#define WEIGHTS_4 WEIGHTS_3 WEIGHT(27, 192)

/* Where a row's next segment ends. */
#define POINT(i, reg, row, a, b, c, d)                                                 \
    "movq 8*" #i "(%[tile]), %%" #reg "\n\t"                                           \
    "addq %%rax, %%" #reg "\n\t"

#define ZERO(i) "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n\t"

#define CLEAR(i, reg, row, a, b, c, d) ZERO(a) ZERO(b) ZERO(c) ZERO(d)

#define STORE(i, offset) "vmovdqu64 %%zmm" #i ", " #offset "(%[sums])\n\t"

#define KEEP_1(i, reg, row, a, b, c, d) STORE(a, i * 256)
#define KEEP_2(i, reg, row, a, b, c, d)                                                \
    KEEP_1(i, reg, row, a, b, c, d) STORE(b, i * 256 + 64)
#define KEEP_3(i, reg, row, a, b, c, d)                                                \
    KEEP_2(i, reg, row, a, b, c, d) STORE(c, i * 256 + 128)
#define KEEP_4(i, reg, row, a, b, c, d)                                                \
    KEEP_3(i, reg, row, a, b, c, d) STORE(d, i * 256 + 192)

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
            EACH_##r(CLEAR) "1:\n\t"                                                   \
                            "movq (%[segment]), %%rax\n\t"                             \
                            "addq %[bytes], %%rax\n\t" EACH_##r(                       \
                                POINT) "movq %[bytes], %[k]\n\t"                       \
                                       "negq %[k]\n\t"                                 \
                                       ".p2align 5\n"                                  \
                                       "2:\n\t" WEIGHTS_##v EACH_##r(                  \
                                           ROW_##v) "addq $64 * " #v ", %[w]\n\t"      \
                                                    "addq $4, %[k]\n\t"                \
                                                    "jnz 2b\n\t"                       \
                                                    "addq $8, %[segment]\n\t"          \
                                                    "cmpq %[end], %[segment]\n\t"      \
                                                    "jne 1b\n\t" EACH_##r(KEEP_##v)    \
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

#define FETCH(p, bytes) _mm_prefetch((const char *)(p) + (bytes), _MM_HINT_T0)

INLINE mask filled_bytes(int n)
{
    return v_first((int)ptac_quads(n) * PTAC_QUAD);
}

INLINE void store_low_bytes(uint8_t *to, ints q, int n)
{
    _mm_mask_storeu_epi8(to, filled_bytes(n), _mm512_cvtepi32_epi8(q));
}

#include "ops/int8/isa_tpl.h"
#include "ops/int8/planes_tpl.h"
#include "ops/int8/sublayer/rows_tpl.h"

/* In 0..255. */
INLINE __m128i bytes_of(vec x, vec by, vec from)
{
    return _mm512_cvtusepi32_epi8(EPI32(max)(round_to(x, by, from), EPI32(set1)(0)));
}

TARGET static void quantize(const float *x, int64_t n, float inverse, float zero,
                            uint8_t *q)
{
    const vec by = v_set(inverse), from = v_set(zero);
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        _mm_storeu_si128((__m128i *)(q + i), bytes_of(v_load(x + i), by, from));
    if (i < n)
        _mm_mask_storeu_epi8(q + i, filled_bytes((int)(n - i)),
                             bytes_of(v_load_first(x + i, (int)(n - i)), by, from));
}

TARGET static void pick(const float *x, int64_t step, int64_t n, float *out)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    int64_t i = 0;

    /* The last number of the second vector is not picked and may not be there. */
    for (; step == 2 && i + LANES < n; i += LANES)
        v_store(out + i, _mm512_permutex2var_ps(v_load(x + 2 * i), even,
                                                v_load(x + 2 * i + LANES)));
    ptac_int8_pick(x + i * step, step, n - i, out + i);
}

const ptac_int8_isa ptac_int8_avx512_vnni = {
    PTAC_INT8_MEMBERS,
    .pick = pick,
};
#endif
