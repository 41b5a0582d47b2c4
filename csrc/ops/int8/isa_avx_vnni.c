/*
 * isa_avx_vnni.c - sums by vpdpbusd in its 256-bit form, eight channels at a time.
 *
 * For CPUs that have it and no AVX-512. What surrounds the sums is AVX2's.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"

#define TARGET __attribute__((target("avx2")))

/* Weights in ymm12 and 13, a row's four activations in all of ymm14's lanes. */
#define DOTS(i, row, a, b)                                                             \
    "vpbroadcastd (%%" #row ", %[k]), %%ymm14\n\t"                                     \
    "%{vex%} vpdpbusd %%ymm12, %%ymm14, %%ymm" #a "\n\t"                               \
    "%{vex%} vpdpbusd %%ymm13, %%ymm14, %%ymm" #b "\n\t"
#define STEP(EACH)                                                                     \
    "vmovdqu (%[w]), %%ymm12\n\t"                                                      \
    "vmovdqu 32(%[w]), %%ymm13\n\t" EACH(DOTS)

enum {
    CHUNK = 32,
};

/* Rows are multiplied where they are. */
typedef struct chunk {
    const uint8_t *ends[PTAC_TILE_ROWS];
} chunk;

static void prepare(chunk *c, int r, const uint8_t *row, int64_t n_quads)
{
    c->ends[r] = row + n_quads * PTAC_QUAD;
}

#include "ops/int8/sum_ymm_tpl.h"

ptac_int8_isa ptac_int8_avx_vnni;

__attribute__((constructor)) static void take_over(void)
{
    ptac_int8_avx_vnni = ptac_int8_avx2;
    ptac_int8_avx_vnni.sum = sum;
}
#endif
