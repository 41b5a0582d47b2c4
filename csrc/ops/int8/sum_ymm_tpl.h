/*
 * sum_ymm_tpl.h - sums of up to 6 rows with a panel, 2 x 8 channels at a time.
 *
 * Of the sixteen registers twelve hold sums; the lanes have four to work with:
 *
 *                    channels  0 to 7    8 to 15
 *     row 0  r8                 ymm0      ymm1
 *     ...
 *     row 5  r13                ymm10     ymm11      free: ymm12 to ymm15
 *
 * The panel is read in chunks of K, 8 KiB of it at most, whose other channels are
 * still in the first cache when their turn comes. The includer defines
 *
 *     TARGET      the functions' target attribute; AVX2 at least
 *     STEP(EACH)  assembly of a step of k: 4 activations of each row, 64 bytes of
 *                 weights at %[w]. EACH(DO) is DO(i, register, sum, sum) for each row,
 *                 whose activations are at (register, %[k])
 *     CHUNK       int: most steps at a time, CHUNK * 256 bytes of weights
 *     chunk       a struct with ends[]: what registers point to, k being negative
 *     prepare()   sets ends[r] for n_quads steps of a row
 *
 * Assembly, because gcc 12 spills sums of the same loop in intrinsics.
 */
#include <string.h>

#define EACH_1(DO) DO(0, r8, 0, 1)
#define EACH_2(DO) EACH_1(DO) DO(1, r9, 2, 3)
#define EACH_3(DO) EACH_2(DO) DO(2, r10, 4, 5)
#define EACH_4(DO) EACH_3(DO) DO(3, r11, 6, 7)
#define EACH_5(DO) EACH_4(DO) DO(4, r12, 8, 9)
#define EACH_6(DO) EACH_5(DO) DO(5, r13, 10, 11)

/* Weights are asked for so many bytes before they are needed: half a chunk. */
#define AHEAD "4096"

#define POINT(i, row, a, b) "movq 8*" #i "(%[ends]), %%" #row "\n\t"
#define BEGIN(i, row, a, b)                                                            \
    "vmovdqu 256*" #i "(%[sums]), %%ymm" #a "\n\t"                                     \
    "vmovdqu 256*" #i "+32(%[sums]), %%ymm" #b "\n\t"
#define KEEP(i, row, a, b)                                                             \
    "vmovdqu %%ymm" #a ", 256*" #i "(%[sums])\n\t"                                     \
    "vmovdqu %%ymm" #b ", 256*" #i "+32(%[sums])\n\t"

#define NEXT                                                                           \
    "prefetcht0 " AHEAD "(%[w])\n\t"                                                   \
    "addq %[stride], %[w]\n\t"                                                         \
    "addq $4, %[k]\n\t"                                                                \
    "jnz 1b\n\t"
#define LOOP(EACH)                                                                     \
    EACH(POINT)                                                                        \
    EACH(BEGIN)                                                                        \
    ".p2align 5\n"                                                                     \
    "1:\n\t" STEP(EACH) NEXT                                                           \
    EACH(KEEP)
#define CLOBBERED                                                                      \
    "memory", "cc", "r8", "r9", "r10", "r11", "r12", "r13", "ymm0", "ymm1", "ymm2",    \
        "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11",      \
        "ymm12", "ymm13", "ymm14", "ymm15"

/* n_quads steps for 16 channels, whose weights are stride bytes apart. */
#define TILE(r)                                                                        \
    TARGET static void sum_##r##x2(const uint8_t *const *ends, const int8_t *w,        \
                                   int64_t stride, int64_t n_quads, int32_t *sums)     \
    {                                                                                  \
        int64_t k = -n_quads * PTAC_QUAD;                                              \
                                                                                       \
        __asm__ volatile(LOOP(EACH_##r)                                                \
                         : [w] "+&r"(w), [k] "+&r"(k)                                  \
                         : [ends] "r"(ends), [sums] "r"(sums), [stride] "r"(stride)    \
                         : CLOBBERED);                                                 \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

static void sum(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums)
{
    static void (*const tiles[])(const uint8_t *const *, const int8_t *, int64_t,
                                 int64_t, int32_t *) = {sum_1x2, sum_2x2, sum_3x2,
                                                        sum_4x2, sum_5x2, sum_6x2};
    const int64_t stride = n_vectors * PTAC_LANES * PTAC_QUAD;
    const int8_t *w = tile->panel;
    chunk c;

    memset(sums, 0, (size_t)n_rows * PTAC_PANEL * sizeof *sums);
    for (int64_t s = 0; s < tile->n_segments; s++)
        for (int64_t k = 0; k < tile->n_quads; k += CHUNK) {
            const int64_t n = ptac_least(tile->n_quads - k, CHUNK);

            for (int r = 0; r < n_rows; r++)
                prepare(&c, r, tile->rows[r] + tile->segments[s] + k * PTAC_QUAD, n);
            for (int v = 0; v < n_vectors; v++)
                tiles[n_rows - 1](c.ends, w + v * PTAC_LANES * PTAC_QUAD, stride, n,
                                  sums + v * PTAC_LANES);
            w += n * stride;
        }
}
