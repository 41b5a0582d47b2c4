/*
 * isa_amx.c - sums by tdpbusd, a tile of 16 channels and 64 values of k at a time.
 *
 * A panel is what the instruction wants: its line k holds the four weights of each
 * channel. Around the sums is AVX-512's.
 *
 * Tile registers: 0 to 3 sums, 4 and 5 activations, 6 and 7 weights. Up to 16 rows go
 * through the panel's four vectors at once, more through two of them, 32 rows at a
 * time, for which each tile that is loaded is used twice.
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
    TILE_ROWS = 16,
    FIRST_WEIGHTS = 6,
    N_TILES = 8,
    SUMS_BYTES = PTAC_PANEL * sizeof(int32_t),
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

static tile_config config_for(int n_rows)
{
    tile_config c = {.palette = 1};

    for (int t = 0; t < N_TILES; t++) {
        c.rows[t] = (uint8_t)(t < FIRST_WEIGHTS ? n_rows : TILE_QUADS);
        c.bytes_a_row[t] = TILE_BYTES;
    }
    return c;
}

/* A tile's lines. */
typedef struct lines {
    const void *first;
    int64_t stride;
} lines;

/* What a call works on: its rows, and where they and weights are filled up. */
typedef struct amx_job {
    const ptac_tile *tile;
    int64_t row_stride;   /* 0: rows lie anywhere */
    int64_t panel_stride; /* bytes of a line of the panel */
    int n_rows;           /* of a tile */
    _Alignas(64) uint8_t gathered[2][TILE_ROWS * TILE_BYTES];
    _Alignas(64) int8_t weights[TILE_QUADS * TILE_BYTES];
} amx_job;

static int64_t stride_of(const ptac_tile *tile, int n_rows)
{
    const int64_t stride = n_rows > 1 ? tile->rows[1] - tile->rows[0] : TILE_BYTES;

    for (int r = 1; r < n_rows; r++)
        if (tile->rows[r] != tile->rows[0] + r * stride)
            return 0;
    return stride;
}

/* n_quads of rows from row on, filled up with zeros. */
static lines rows_at(amx_job *job, int row, int64_t offset, int64_t n_quads, int which)
{
    const ptac_tile *tile = job->tile;
    const size_t bytes = (size_t)n_quads * PTAC_QUAD;
    uint8_t *to = job->gathered[which];

    if (job->row_stride && n_quads == TILE_QUADS)
        return (lines){tile->rows[row] + offset, job->row_stride};
    for (int r = 0; r < job->n_rows; r++, to += TILE_BYTES) {
        memset(to, 0, TILE_BYTES);
        memcpy(to, tile->rows[row + r] + offset, bytes);
    }
    return (lines){job->gathered[which], TILE_BYTES};
}

/* The same of weights, whose lines beyond are multiplied with those zeros. */
static lines weights_at(amx_job *job, const int8_t *w, int64_t n_quads)
{
    if (n_quads == TILE_QUADS)
        return (lines){w, job->panel_stride};
    for (int64_t i = 0; i < n_quads; i++)
        memcpy(job->weights + i * TILE_BYTES, w + i * job->panel_stride, TILE_BYTES);
    return (lines){job->weights, TILE_BYTES};
}

#define LOAD_LINES(t, from)                                                            \
    do {                                                                               \
        const lines from_ = from;                                                      \
                                                                                       \
        LOAD(t, from_.first, from_.stride);                                            \
    } while (0)

/* The sums of a tile of rows with all vectors. */
static void sum_wide(amx_job *job, int n_vectors, int32_t *sums)
{
    const ptac_tile *tile = job->tile;
    const int8_t *w = tile->panel;

    CLEAR(0);
    CLEAR(1);
    CLEAR(2);
    CLEAR(3);
    for (int64_t s = 0; s < tile->n_segments; s++)
        for (int64_t k = 0; k < tile->n_quads; k += TILE_QUADS) {
            const int64_t n = ptac_least(tile->n_quads - k, TILE_QUADS);

            LOAD_LINES(4, rows_at(job, 0, tile->segments[s] + k * PTAC_QUAD, n, 0));
            LOAD_LINES(6, weights_at(job, w, n));
            DOT(0, 4, 6);
            if (n_vectors > 1) {
                LOAD_LINES(7, weights_at(job, w + TILE_BYTES, n));
                DOT(1, 4, 7);
            }
            if (n_vectors > 2) {
                LOAD_LINES(6, weights_at(job, w + 2 * TILE_BYTES, n));
                DOT(2, 4, 6);
            }
            if (n_vectors > 3) {
                LOAD_LINES(7, weights_at(job, w + 3 * TILE_BYTES, n));
                DOT(3, 4, 7);
            }
            w += n * job->panel_stride;
        }
    STORE(0, sums, SUMS_BYTES);
    STORE(1, sums + PTAC_LANES, SUMS_BYTES);
    STORE(2, sums + 2 * PTAC_LANES, SUMS_BYTES);
    STORE(3, sums + 3 * PTAC_LANES, SUMS_BYTES);
}

/* The sums of two tiles of rows with the vector at w, and with the next if wanted. */
static void sum_square(amx_job *job, const int rows[2], const int8_t *w, bool has_next,
                       int32_t *sums)
{
    const ptac_tile *tile = job->tile;
    int32_t *above = sums + rows[0] * PTAC_PANEL, *below = sums + rows[1] * PTAC_PANEL;

    CLEAR(0);
    CLEAR(1);
    CLEAR(2);
    CLEAR(3);
    for (int64_t s = 0; s < tile->n_segments; s++)
        for (int64_t k = 0; k < tile->n_quads; k += TILE_QUADS) {
            const int64_t n = ptac_least(tile->n_quads - k, TILE_QUADS);
            const int64_t offset = tile->segments[s] + k * PTAC_QUAD;

            LOAD_LINES(6, weights_at(job, w, n));
            LOAD_LINES(4, rows_at(job, rows[0], offset, n, 0));
            DOT(0, 4, 6);
            LOAD_LINES(5, rows_at(job, rows[1], offset, n, 1));
            DOT(1, 5, 6);
            if (has_next) {
                LOAD_LINES(7, weights_at(job, w + TILE_BYTES, n));
                DOT(2, 4, 7);
                DOT(3, 5, 7);
            }
            w += n * job->panel_stride;
        }
    STORE(0, above, SUMS_BYTES);
    STORE(1, below, SUMS_BYTES);
    if (has_next) {
        STORE(2, above + PTAC_LANES, SUMS_BYTES);
        STORE(3, below + PTAC_LANES, SUMS_BYTES);
    }
}

/* Tiles are as even as can be; the last begins early where rows do not fill it. */
static void sum_by_tiles(const ptac_tile *tile, int n_rows, int n_vectors,
                         int32_t *sums)
{
    const int n_pairs = (int)ptac_parts(n_rows, 2 * TILE_ROWS);
    const int height =
        n_rows <= TILE_ROWS ? n_rows : (int)ptac_parts(n_rows, 2 * n_pairs);
    const tile_config config = config_for(height);
    amx_job job = {
        .tile = tile,
        .row_stride = stride_of(tile, n_rows),
        .panel_stride = n_vectors * TILE_BYTES,
        .n_rows = height,
    };

    CONFIGURE(config);
    if (n_rows <= TILE_ROWS)
        sum_wide(&job, n_vectors, sums);
    for (int v = 0; v < n_vectors && n_rows > TILE_ROWS; v += 2)
        for (int pair = 0; pair < n_pairs; pair++) {
            const int rows[] = {
                2 * pair * height,
                (int)ptac_least((2 * pair + 1) * height, n_rows - height)};

            sum_square(&job, rows, tile->panel + v * TILE_BYTES, v + 1 < n_vectors,
                       sums + v * PTAC_LANES);
        }
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

static void sum_by_vectors(const ptac_tile *tile, int n_rows, int n_vectors,
                           int32_t *sums)
{
    ptac_tile some = *tile;

    for (int r = 0; r < n_rows; r += PTAC_TILE_ROWS) {
        const int n = (int)ptac_least(n_rows - r, PTAC_TILE_ROWS);

        memcpy(some.rows, tile->rows + r, (size_t)n * sizeof *some.rows);
        ptac_int8_avx512_vnni.sum(&some, n, n_vectors, sums + r * PTAC_PANEL);
    }
}

static void sum(const ptac_tile *tile, int n_rows, int n_vectors, int32_t *sums)
{
    if (is_permitted())
        sum_by_tiles(tile, n_rows, n_vectors, sums);
    else
        sum_by_vectors(tile, n_rows, n_vectors, sums);
}

ptac_int8_isa ptac_int8_amx;

__attribute__((constructor)) static void take_over(void)
{
    ptac_int8_amx = ptac_int8_avx512_vnni;
    ptac_int8_amx.sum = sum;
    ptac_int8_amx.tile_rows = PTAC_MOST_TILE_ROWS;
}
#endif
