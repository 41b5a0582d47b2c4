/*
 * product_packed_tpl.h - products whose lanes are neighbouring columns.
 *
 * A panel is two vectors of columns and a block of terms, laid out term by term in the
 * first cache. A tile of rows passes it with an accumulator for each of its vectors: a
 * step loads the panel's two vectors of a term and multiplies them with that term of
 * each row. Rows are read where they lie; columns of a transposed a are laid out, tile
 * by tile, once a call. Narrow matrices, of few columns, are read where they lie.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/product/product.h"

#include <string.h>

enum {
    PACKED_ROWS = PRODUCT_REGISTERS == 32 ? 12 : 6, /* of a tile, at most */
    PACKED_COLUMNS = 2 * LANES,                     /* of a panel */
    PACKED_TERMS = 256,                             /* of a panel */
    PACKED_NARROW = 128, /* floats from term to term, which the first caches hold */
};

/* Where a tile's rows lie: strides of rows and of terms. */
typedef struct packed_rows {
    const float *at;
    int64_t row, term;
} packed_rows;

/* A tile's place in y, whose panel has n_columns of its own and n_terms. */
typedef struct packed_tile {
    const float *panel;
    int64_t panel_term; /* from term to term */
    const float *bias;
    int64_t bias_row;
    float *y;
    int64_t y_row;
    int n_columns, n_terms;
    bool adds;    /* to what earlier panels have left in y */
    bool is_last; /* then alpha and beta count */
    float alpha, beta;
} packed_tile;

INLINE void packed_store(const packed_tile *t, int row, vec sum, int first)
{
    const int n = t->n_columns - first;
    const int count = n < LANES ? n : LANES;
    float *y = t->y + row * t->y_row + first;

    if (count <= 0)
        return;
    if (t->adds)
        sum = v_add(v_load_first(y, count), sum);
    if (t->is_last)
        sum = v_mul(sum, v_set(t->alpha));
    if (t->bias) {
        const float *bias = t->bias + row * t->bias_row + first;

        sum = v_add(sum, v_mul(v_load_first(bias, count), v_set(t->beta)));
    }
    v_store_first(y, sum, count);
}

/* n_rows and is_turned are constants: whether rows lie side by side, or terms do. */
INLINE void packed_tile_of(const packed_tile *t, const packed_rows *a, int n_rows,
                           bool is_turned)
{
    const int64_t row = is_turned ? 1 : a->row;
    const int64_t term = is_turned ? a->term : 1;
    vec sums[PACKED_ROWS][2];

#pragma GCC unroll 16
    for (int i = 0; i < n_rows; i++)
        sums[i][0] = sums[i][1] = v_zero();
    for (int64_t k = 0; k < t->n_terms; k++) {
        const vec low = v_load(t->panel + k * t->panel_term);
        const vec high = v_load(t->panel + k * t->panel_term + LANES);

#pragma GCC unroll 16
        for (int i = 0; i < n_rows; i++) {
            const vec one = v_set(a->at[i * row + k * term]);

            sums[i][0] = v_fma(one, low, sums[i][0]);
            sums[i][1] = v_fma(one, high, sums[i][1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n_rows; i++) {
        packed_store(t, i, sums[i][0], 0);
        packed_store(t, i, sums[i][1], LANES);
    }
}

typedef void (*packed_fn)(const packed_tile *tile, const packed_rows *a);

#define PACKED_TILE(n)                                                                 \
    TARGET static void packed_rows_##n(const packed_tile *tile, const packed_rows *a)  \
    {                                                                                  \
        packed_tile_of(tile, a, n, false);                                             \
    }                                                                                  \
    TARGET static void packed_turned_##n(const packed_tile *tile,                      \
                                         const packed_rows *a)                         \
    {                                                                                  \
        packed_tile_of(tile, a, n, true);                                              \
    }
#define PACKED_TILE_FNS(n)                                                             \
    {                                                                                  \
        packed_rows_##n, packed_turned_##n                                             \
    }
PACKED_TILE(1)
PACKED_TILE(2)
PACKED_TILE(3)
PACKED_TILE(4)
PACKED_TILE(5)
PACKED_TILE(6)
#if PRODUCT_REGISTERS == 32
PACKED_TILE(7)
PACKED_TILE(8)
PACKED_TILE(9)
PACKED_TILE(10)
PACKED_TILE(11)
PACKED_TILE(12)
#endif

/* By rows; of terms side by side, and of rows side by side. */
static const packed_fn packed_tiles[PACKED_ROWS + 1][2] = {
    {NULL},
    PACKED_TILE_FNS(1),
    PACKED_TILE_FNS(2),
    PACKED_TILE_FNS(3),
    PACKED_TILE_FNS(4),
    PACKED_TILE_FNS(5),
    PACKED_TILE_FNS(6),
#if PRODUCT_REGISTERS == 32
    PACKED_TILE_FNS(7),
    PACKED_TILE_FNS(8),
    PACKED_TILE_FNS(9),
    PACKED_TILE_FNS(10),
    PACKED_TILE_FNS(11),
    PACKED_TILE_FNS(12),
#endif
};

/* Terms [begin, end) of columns from column on, zeros behind the last one. */
typedef struct packed_part {
    int64_t column, begin, end;
} packed_part;

/* count terms of n_columns, term by term. */
INLINE void lay_out_square(const float *from, int64_t column, int n_columns, int count,
                           float *to)
{
    vec columns[LANES];

#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        columns[i] = i < n_columns ? v_load_first(from + i * column, count) : v_zero();
    v_transpose(columns);
#pragma GCC unroll 16
    for (int i = 0; i < count; i++)
        v_store(to + i * PACKED_COLUMNS, columns[i]);
}

/* A panel of columns whose terms lie side by side. */
INLINE void lay_out_columns(const ptac_product *p, const packed_part *part,
                            float *panel)
{
    for (int half = 0; half < 2; half++) {
        const int64_t first = part->column + half * LANES;
        const int n_columns = (int)ptac_least(p->n - first, LANES);
        const float *from = p->b + first * p->b_column;
        float *to = panel + half * LANES - part->begin * PACKED_COLUMNS;

        FOR_LANES(k, count, part->begin, part->end,
                  lay_out_square(from + k, p->b_column, n_columns, count,
                                 to + k * PACKED_COLUMNS));
    }
}

/* A panel of rows whose columns lie side by side. */
INLINE void lay_out_rows(const ptac_product *p, const packed_part *part, float *panel)
{
    const int n = (int)ptac_least(p->n - part->column, PACKED_COLUMNS);
    const int low = n < LANES ? n : LANES, high = n - low;
    const float *from = p->b + part->column;

    for (int64_t k = part->begin; k < part->end; k++, panel += PACKED_COLUMNS) {
        const float *row = from + k * p->b_term;

        if (n == PACKED_COLUMNS) {
            v_store(panel, v_load(row));
            v_store(panel + LANES, v_load(row + LANES));
        } else {
            v_store(panel, v_load_first(row, low));
            v_store(panel + LANES,
                    high > 0 ? v_load_first(row + LANES, high) : v_zero());
        }
    }
}

/* Tiles of a transposed a, laid out term by term. */
typedef struct packed_job {
    const ptac_product *product;
    float *laid_out; /* NULL where they are read where they lie */
} packed_job;

TARGET static void lay_out_tiles(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const ptac_product *p = job->product;

    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t row = tile * PACKED_ROWS;
        const int n = (int)ptac_least(p->m - row, PACKED_ROWS);
        const float *from = p->a + row;
        float *to = job->laid_out + row * p->k;

        for (int64_t k = 0; k < p->k; k++, to += PACKED_ROWS, from += p->a_term) {
            if (n == PACKED_ROWS) /* a constant, and no call */
                memcpy(to, from, sizeof *to * PACKED_ROWS);
            else
                memcpy(to, from, sizeof *to * (size_t)n);
        }
    }
}

/* All rows, of a panel. */
INLINE void pass_panel(const packed_job *job, const packed_part *part,
                       const float *panel, int64_t panel_term)
{
    const ptac_product *p = job->product;
    const bool is_last = part->end == p->k;
    packed_tile tile = {
        .panel = panel,
        .panel_term = panel_term,
        .bias = p->bias && is_last ? p->bias + part->column : NULL,
        .bias_row = p->bias_row,
        .y = p->y + part->column,
        .y_row = p->y_row,
        .n_columns = (int)ptac_least(p->n - part->column, PACKED_COLUMNS),
        .n_terms = (int)(part->end - part->begin),
        .adds = part->begin > 0,
        .is_last = is_last,
        .alpha = p->alpha,
        .beta = p->beta,
    };

    for (int64_t row = 0; row < p->m; row += PACKED_ROWS) {
        const int n_rows = (int)ptac_least(p->m - row, PACKED_ROWS);
        packed_rows a = {p->a + row * p->a_row, p->a_row, p->a_term};

        if (job->laid_out) {
            a.at = job->laid_out + row * p->k;
            a.term = PACKED_ROWS;
        }
        a.at += part->begin * a.term;
        packed_tiles[n_rows][p->a_term != 1](&tile, &a);
        tile.y += PACKED_ROWS * p->y_row;
        if (tile.bias)
            tile.bias += PACKED_ROWS * p->bias_row;
    }
}

/* Whether b is as good as a panel. */
static bool lies_in_panels(const ptac_product *p, const packed_part *part)
{
    return p->b_column == 1 && p->b_term <= PACKED_NARROW &&
           p->n - part->column >= PACKED_COLUMNS;
}

TARGET static void pass_panels(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const ptac_product *p = job->product;
    _Alignas(64) float panel[PACKED_TERMS * PACKED_COLUMNS];

    for (int64_t i = begin; i < end; i++) {
        packed_part part = {.column = i * PACKED_COLUMNS};

        for (; part.begin < p->k; part.begin += PACKED_TERMS) {
            part.end = ptac_least(p->k, part.begin + PACKED_TERMS);
            if (lies_in_panels(p, &part)) {
                pass_panel(job, &part, p->b + part.begin * p->b_term + part.column,
                           p->b_term);
                continue;
            }
            if (p->b_column == 1)
                lay_out_rows(p, &part, panel);
            else
                lay_out_columns(p, &part, panel);
            pass_panel(job, &part, panel, PACKED_COLUMNS);
        }
    }
}

static ptac_status product_packed(const ptac_product *p)
{
    packed_job job = {.product = p};
    const int64_t n_tiles = ptac_parts(p->m, PACKED_ROWS);
    const int64_t work = p->m * p->k * PACKED_COLUMNS;

    if (p->a_term > PACKED_NARROW) {
        job.laid_out =
            ptac_scratch_take(sizeof(float) * (size_t)(n_tiles * p->k) * PACKED_ROWS);
        if (!job.laid_out)
            return PTAC_FAILED;
        ptac_parallel_for(0, n_tiles, PTAC_PRODUCT_WORK / (p->k * PACKED_ROWS) + 1,
                          lay_out_tiles, &job);
    }
    ptac_parallel_for(0, ptac_parts(p->n, PACKED_COLUMNS), PTAC_PRODUCT_WORK / work + 1,
                      pass_panels, &job);
    ptac_scratch_give(job.laid_out);
    return PTAC_OK;
}
