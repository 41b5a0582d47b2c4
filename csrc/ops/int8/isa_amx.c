/*
 * isa_amx.c - sums by tdpbusd, a tile of 16 channels and 64 values of k at a time.
 *
 * A panel is what the instruction wants: its line k holds the four weights of each
 * channel. Rows lie anywhere and are gathered first. Around the sums is AVX-512's.
 *
 * Tile registers: 0 to 3 sums of the panel's four vectors, 4 and 5 activations and
 * weights of 16 quads, 6 and 7 of what is left of a segment.
 */
#if defined(__x86_64__)
#include "ops/int8/isa.h"
#include "ops/int8/panel.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    TILE_QUADS = 16, /* lines of weights, and the 64 bytes of a line */
    TILE_BYTES = 64,
    N_TILES = 8,
};

/* Intel SDM volume 1, 18.3: what ldtilecfg reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as ldtilecfg reads it");

/* Assembly rather than intrinsics: gcc 12's do not say that they read memory. */
#define CONFIGURE(config) __asm__ volatile("ldtilecfg %0" : : "m"(config))
#define RELEASE()         __asm__ volatile("tilerelease" : : : "memory")
#define CLEAR(t)          __asm__ volatile("tilezero %%tmm" #t : :)
#define LOAD(t, from, stride)                                                          \
    __asm__ volatile("tileloadd (%0, %1), %%tmm" #t                                    \
                     :                                                                 \
                     : "r"(from), "r"((int64_t)(stride))                               \
                     : "memory")
#define STORE(t, to, stride)                                                           \
    __asm__ volatile("tilestored %%tmm" #t ", (%0, %1)"                                \
                     :                                                                 \
                     : "r"(to), "r"((int64_t)(stride))                                 \
                     : "memory")
/* sums += activations (unsigned) times weights (signed) */
#define DOT(sums, activations, weights)                                                \
    __asm__ volatile("tdpbusd %%tmm" #weights ", %%tmm" #activations ", %%tmm" #sums   \
                     :                                                                 \
                     :)

#define MULTIPLY(v, activations, weights, w, stride)                                   \
    do {                                                                               \
        LOAD(weights, (w) + (v)*TILE_BYTES, stride);                                   \
        DOT(v, activations, weights);                                                  \
    } while (0)
#define MULTIPLY_ALL(activations, weights, w, stride, n_vectors)                       \
    do {                                                                               \
        MULTIPLY(0, activations, weights, w, stride);                                  \
        if ((n_vectors) > 1)                                                           \
            MULTIPLY(1, activations, weights, w, stride);                              \
        if ((n_vectors) > 2)                                                           \
            MULTIPLY(2, activations, weights, w, stride);                              \
        if ((n_vectors) > 3)                                                           \
            MULTIPLY(3, activations, weights, w, stride);                              \
    } while (0)

static tile_config config_for(int n_rows, int64_t n_left)
{
    tile_config c = {.palette = 1};

    for (int t = 0; t < N_TILES; t++) {
        c.rows[t] = (uint8_t)n_rows;
        c.bytes_a_row[t] = TILE_BYTES;
    }
    c.rows[5] = TILE_QUADS;
    c.rows[6] = n_left ? (uint8_t)n_rows : 0;
    c.bytes_a_row[6] = (uint16_t)(n_left * PTAC_QUAD);
    c.rows[7] = (uint8_t)n_left;
    c.bytes_a_row[7] = n_left ? TILE_BYTES : 0;
    return c;
}

static void gather(const ptac_tile *tile, int n_rows, int64_t offset, int64_t n_quads,
                   uint8_t *lines)
{
    for (int r = 0; r < n_rows; r++)
        memcpy(lines + r * TILE_BYTES, tile->rows[r] + offset,
               (size_t)n_quads * PTAC_QUAD);
}

static void sum_by_tiles(const ptac_tile *tile, int n_rows, int n_vectors,
                         int32_t *sums)
{
    const int64_t stride = n_vectors * TILE_BYTES, n_left = tile->n_quads % TILE_QUADS;
    const int64_t n_whole = tile->n_quads - n_left;
    const tile_config config = config_for(n_rows, n_left);
    const int8_t *w = tile->panel;
    _Alignas(64) uint8_t lines[PTAC_TILE_ROWS * TILE_BYTES];

    CONFIGURE(config);
    CLEAR(0);
    CLEAR(1);
    CLEAR(2);
    CLEAR(3);
    for (int64_t s = 0; s < tile->n_segments; s++) {
        const int64_t from = tile->segments[s];

        for (int64_t k = 0; k < n_whole; k += TILE_QUADS, w += TILE_QUADS * stride) {
            gather(tile, n_rows, from + k * PTAC_QUAD, TILE_QUADS, lines);
            LOAD(4, lines, TILE_BYTES);
            MULTIPLY_ALL(4, 5, w, stride, n_vectors);
        }
        if (n_left) {
            gather(tile, n_rows, from + n_whole * PTAC_QUAD, n_left, lines);
            LOAD(6, lines, TILE_BYTES);
            MULTIPLY_ALL(6, 7, w, stride, n_vectors);
            w += n_left * stride;
        }
    }
    STORE(0, sums, PTAC_PANEL * sizeof *sums);
    STORE(1, sums + PTAC_LANES, PTAC_PANEL * sizeof *sums);
    STORE(2, sums + 2 * PTAC_LANES, PTAC_PANEL * sizeof *sums);
    STORE(3, sums + 3 * PTAC_LANES, PTAC_PANEL * sizeof *sums);
    RELEASE();
}

/*
 * Linux keeps tiles for processes that have asked for it (Documentation/arch/x86/
 * xstate.rst). It says no where a signal's stack would not have the room.
 */
static bool is_permitted(void)
{
    enum { UNKNOWN, YES, NO, REQUEST = 0x1023, TILE_DATA = 18 };
    static int known;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);

    if (answer == UNKNOWN) {
        answer = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) ? NO : YES;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == YES;
}

static void sum(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums)
{
    if (is_permitted())
        sum_by_tiles(tile, n_rows, n_vectors, sums);
    else
        ptac_int8_avx512_vnni.sum(tile, n_rows, n_vectors, sums);
}

ptac_int8_isa ptac_int8_amx;

__attribute__((constructor)) static void take_over(void)
{
    ptac_int8_amx = ptac_int8_avx512_vnni;
    ptac_int8_amx.sum = sum;
}
#endif
