/*
 * tiles_tpl.h - products whose rows are few and whose sums stay in registers.
 *
 * A panel is up to four vectors of columns, laid out term by term. A tile of rows
 * passes a part of it, as much as fits into the first cache, with an accumulator for
 * each of its vectors; then the next tile does. Rows are read where they lie. What a
 * tile has added up goes to its sums in memory: sums of parts are as exact as a
 * library's.
 *
 * The includer defines, besides lanes, RECURRENT_REGISTERS: how many vectors fit into
 * registers.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/math/quick_tpl.h"
#include "ops/math/turned_tpl.h"
#include "ops/recurrent/recurrent.h"

#include <string.h>

enum {
    TILE_ROWS = RECURRENT_REGISTERS == 32 ? 6 : 3, /* at most */
    TILE_VECTORS = 4,                              /* at most */
    TILE_NUMBERS = TILE_ROWS * TILE_VECTORS * LANES,
    GROUP_TILES = 36 / TILE_ROWS, /* that pass a part before the next */
    PART_TERMS = 24 * 1024 / (4 * TILE_VECTORS * LANES),
    LINE = 16,             /* numbers */
    SHARED_WORK = 1 << 18, /* multiply-adds that are worth a thread */
};

/* A row's sums; vector v of them. */
#define SUM(sums, row, v) ((sums) + ((row)*TILE_VECTORS + (v)) * LANES)

/*
 * Terms of a part, as they go to a tile. With each term a line of what comes next is
 * asked for, from next on.
 */
typedef struct part_terms {
    const float *panel, *next;
    int64_t begin, end;
    int n_vectors;
} part_terms;

typedef vec tile_part[TILE_ROWS][TILE_VECTORS];

INLINE void start_part(int n_rows, tile_part part)
{
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECTORS; v++)
            part[i][v] = v_zero();
}

/*
 * part += rows times the panel; n_rows and n_vectors are constants. The panel's last
 * vector goes to number last.
 */
INLINE void add_span(const float *const rows[TILE_ROWS], part_terms *p, int n_rows,
                     int n_vectors, int last, tile_part part)
{
    const float *panel = p->panel, *next = p->next;

    for (int64_t k = p->begin; k < p->end; k++, panel += n_vectors * LANES) {
        vec terms[TILE_ROWS];

        __builtin_prefetch(next);
        next += LINE;
#pragma GCC unroll 8
        for (int i = 0; i < n_rows; i++)
            terms[i] = v_set(rows[i][k]);
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            const vec column = v_load(panel + v * LANES);
            const int to = v == n_vectors - 1 ? last : v;

#pragma GCC unroll 8
            for (int i = 0; i < n_rows; i++)
                part[i][to] = v_fma(terms[i], column, part[i][to]);
        }
    }
    p->panel = panel;
    p->next = next;
}

/* sums[i] += rows[i] times the panel; n_rows and n_vectors are constants. */
INLINE void add_part_of(const float *const rows[TILE_ROWS], const part_terms *p,
                        int n_rows, int n_vectors, float *sums)
{
    part_terms span = *p;
    tile_part part;

    start_part(n_rows, part);
    add_span(rows, &span, n_rows, n_vectors, n_vectors - 1, part);
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            float *sum = SUM(sums, i, v);

            v_store(sum, v_add(v_load(sum), part[i][v]));
        }
}

typedef void (*add_part_fn)(const float *const rows[TILE_ROWS], const part_terms *p,
                            float *sums);

#define ADD_PART(n_rows, n_vectors)                                                    \
    TARGET static void add_part_##n_rows##_##n_vectors(                                \
        const float *const rows[TILE_ROWS], const part_terms *p, float *sums)          \
    {                                                                                  \
        add_part_of(rows, p, n_rows, n_vectors, sums);                                 \
    }
#define ADD_PARTS(n_rows)                                                              \
    ADD_PART(n_rows, 1) ADD_PART(n_rows, 2) ADD_PART(n_rows, 3) ADD_PART(n_rows, 4)
#define ADD_PART_FNS(n_rows)                                                           \
    {                                                                                  \
        add_part_##n_rows##_1, add_part_##n_rows##_2, add_part_##n_rows##_3,           \
            add_part_##n_rows##_4,                                                     \
    }
ADD_PARTS(1)
ADD_PARTS(2)
ADD_PARTS(3)
#if RECURRENT_REGISTERS == 32
ADD_PARTS(4)
ADD_PARTS(5)
ADD_PARTS(6)
#endif

/* By rows and vectors, from one on. */
static const add_part_fn add_part_fns[TILE_ROWS][TILE_VECTORS] = {
    ADD_PART_FNS(1), ADD_PART_FNS(2), ADD_PART_FNS(3),
#if RECURRENT_REGISTERS == 32
    ADD_PART_FNS(4), ADD_PART_FNS(5), ADD_PART_FNS(6),
#endif
};

/* Rows [first, first + n) of a batch, where the terms of each lie, and its sums. */
typedef struct tile {
    int64_t first;
    int n;
    const float *rows[TILE_ROWS];
    _Alignas(64) float sums[TILE_NUMBERS];
} tile;

static inline int64_t count_tiles(int64_t n_rows)
{
    return ptac_parts(n_rows, TILE_ROWS);
}

/* Rows of tile number i of n_tiles, as even as can be. */
static inline void take_rows(tile *t, int64_t n_rows, int64_t n_tiles, int64_t i)
{
    t->first = i * n_rows / n_tiles;
    t->n = (int)((i + 1) * n_rows / n_tiles - t->first);
}

/*
 * Tile number i of those that threads share out. Rows of a packed sequence that come
 * later end earlier: first and last tiles take turns.
 */
static inline int64_t tile_number(const ptac_recurrent_steps *steps, int64_t n_tiles,
                                  int64_t i)
{
    if (!steps->starts)
        return i;
    return i % 2 ? n_tiles - 1 - i / 2 : i / 2;
}

/* Those of its rows that step t has; false: none. */
static inline bool take_rows_of(tile *t, const ptac_recurrent_steps *steps,
                                int64_t time, int64_t n_tiles, int64_t number)
{
    take_rows(t, steps->n_rows, n_tiles, number);
    if (steps->starts)
        t->n = (int)ptac_least(t->n, ptac_recurrent_rows(steps, time) - t->first);
    return t->n > 0;
}

/*
 * Add n_terms to the sums of some tiles, which have their rows. Behind the panel comes
 * what lies at after.
 */
static void add_terms(tile *tiles, int n_tiles, const float *panel, int64_t n_terms,
                      int n_vectors, const float *after)
{
    part_terms p = {.panel = panel, .n_vectors = n_vectors};

    for (; p.begin < n_terms; p.begin = p.end) {
        const float *behind;

        p.end = ptac_least(n_terms, p.begin + PART_TERMS);
        behind = p.panel + (p.end - p.begin) * n_vectors * LANES;
        p.next = p.end < n_terms ? behind : after;
        for (int i = 0; i < n_tiles; i++, p.next += (p.end - p.begin) * LINE)
            add_part_fns[tiles[i].n - 1][n_vectors - 1](tiles[i].rows, &p,
                                                        tiles[i].sums);
        p.panel = behind;
    }
}

/* Columns of a matrix whose terms lie side by side: count terms of LANES columns. */
INLINE void lay_out_square(const float *from, int64_t column, int n_columns, int count,
                           float *to, int64_t to_term)
{
    vec terms[LANES];

    load_turned(from, column, n_columns, count, terms);
#pragma GCC unroll 16
    for (int i = 0; i < count; i++)
        v_store(to + i * to_term, terms[i]);
}

/*
 * A panel of a weight with n_terms to a row: vector v has n_units[v] of its rows from
 * rows[v] on, behind which stand zeros.
 */
INLINE void lay_out_units(const float *w, const int64_t rows[TILE_VECTORS],
                          const int n_units[TILE_VECTORS], int64_t n_terms,
                          int n_vectors, float *panel)
{
    for (int v = 0; v < n_vectors; v++) {
        const float *from = w + rows[v] * n_terms;
        float *to = panel + v * LANES;

        FOR_LANES(k, count, (int64_t)0, n_terms,
                  lay_out_square(from + k, n_terms, n_units[v], count,
                                 to + k * n_vectors * LANES, n_vectors * LANES));
    }
}
