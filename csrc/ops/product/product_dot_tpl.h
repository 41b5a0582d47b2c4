/*
 * product_dot_tpl.h - products whose lanes are neighbouring terms.
 *
 * A tile of rows and columns has an accumulator for each of its elements: a step loads
 * a vector of each row and of each column and multiplies every one with every other.
 * Columns of the tile, which are many, stay in the first cache while the rows pass.
 */
#include "core/host.h"
#include "ops/product/product.h"

#define DOT_IS_WIDE (PRODUCT_REGISTERS == 32)

enum {
    DOT_ROWS = DOT_IS_WIDE ? 6 : 3, /* of a tile, at most; */
    DOT_COLUMNS = 8,                /* a tile of few rows has so many, others four */
    DOT_TERMS = 1024,               /* added up at once */
    DOT_AHEAD = 8192, /* floats between what is read and what is fetched */
};

/* A tile at (row, column), over terms [begin, end). */
typedef struct dot_tile {
    const ptac_product *product;
    int64_t row, column, begin, end;
    int skipped;           /* columns that are another tile's */
    int n_fetched;         /* columns of a later group that this tile fetches, */
    const float *to_fetch; /* of which the first one's first term is here */
} dot_tile;

/* Four columns of a row of y, of which some are another tile's. */
INLINE void dot_store(const dot_tile *t, int row, int column, __m128 sums)
{
    const ptac_product *p = t->product;
    const int64_t first = t->column + column;
    const float *bias = p->bias ? p->bias + (t->row + row) * p->bias_row + first : NULL;
    float *y = p->y + (t->row + row) * p->y_row + first;
    float values[4];

    _mm_storeu_ps(values, sums);
    for (int j = 0; j < 4; j++) {
        if (column + j < t->skipped)
            continue;
        if (t->begin > 0)
            values[j] += y[j];
        if (t->end == p->k) {
            values[j] *= p->alpha;
            if (bias)
                values[j] += p->beta * bias[j];
        }
        y[j] = values[j];
    }
}

/*
 * Into the second cache, which asks memory for more lines at a time than the first one
 * can: from there on short columns come at 19 to 21 GB/s and not at 9 to 16 (Zen 4).
 */
INLINE void dot_fetch(const dot_tile *t, int64_t at)
{
    for (int j = 0; j < t->n_fetched; j++)
        _mm_prefetch(t->to_fetch + j * t->product->b_column + at, _MM_HINT_T1);
}

/*
 * count terms, added to sums. n_rows and n_columns, of which four divide the latter,
 * are constants. Rows stay in registers while the columns pass.
 */
INLINE void dot_step(const ptac_product *p, const float *a, const float *b, int count,
                     int n_rows, int n_columns, vec sums[DOT_ROWS][DOT_COLUMNS])
{
    vec rows[DOT_ROWS];

#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
        rows[i] = v_load_first(a + i * p->a_row, count);
#pragma GCC unroll 8
    for (int j = 0; j < n_columns; j++) {
        const vec column = v_load_first(b + j * p->b_column, count);

#pragma GCC unroll 8
        for (int i = 0; i < n_rows; i++)
            sums[i][j] = v_fma(rows[i], column, sums[i][j]);
    }
}

INLINE void dot_tile_of(const dot_tile *t, int n_rows, int n_columns)
{
    const ptac_product *p = t->product;
    const float *a = p->a + t->row * p->a_row + t->begin;
    const float *b = p->b + t->column * p->b_column + t->begin;
    vec sums[DOT_ROWS][DOT_COLUMNS];

#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < n_columns; j++)
            sums[i][j] = v_zero();
    FOR_LANES(at, count, 0, t->end - t->begin, {
        dot_fetch(t, at);
        dot_step(p, a + at, b + at, count, n_rows, n_columns, sums);
    });
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < n_columns; j += 4)
            dot_store(t, i, j, v_sums_of_four(&sums[i][j]));
}

#define DOT_TILE(rows, columns)                                                        \
    TARGET static void dot_tile_##rows##x##columns(const dot_tile *tile)               \
    {                                                                                  \
        dot_tile_of(tile, rows, columns);                                              \
    }
DOT_TILE(1, 4)
DOT_TILE(2, 4)
DOT_TILE(3, 4)
DOT_TILE(1, 8)
#if DOT_IS_WIDE
DOT_TILE(4, 4)
DOT_TILE(5, 4)
DOT_TILE(6, 4)
DOT_TILE(2, 8)
DOT_TILE(3, 8)
#endif

/* By rows, of four columns and of eight. */
typedef void (*dot_fn)(const dot_tile *tile);
static const dot_fn dot_of_four[DOT_ROWS + 1] = {
    NULL,         dot_tile_1x4, dot_tile_2x4, dot_tile_3x4,
#if DOT_IS_WIDE
    dot_tile_4x4, dot_tile_5x4, dot_tile_6x4,
#endif
};
static const dot_fn dot_of_eight[DOT_ROWS + 1] = {
    NULL,
    dot_tile_1x8,
#if DOT_IS_WIDE
    dot_tile_2x8,
    dot_tile_3x8,
#endif
};

/* Rows in tiles that differ by one at most, the larger ones first. */
typedef struct dot_plan {
    const ptac_product *product;
    int64_t n_tiles, n_larger;
    int rows, columns; /* of the smaller tiles; of all */
    const dot_fn *tiles;
} dot_plan;

static dot_plan dot_plan_of(const ptac_product *p)
{
    dot_plan plan = {.product = p, .n_tiles = ptac_parts(p->m, DOT_ROWS), .columns = 4};

    plan.rows = (int)(p->m / plan.n_tiles);
    plan.n_larger = p->m % plan.n_tiles;
    plan.tiles = dot_of_four;
    if (dot_of_eight[plan.rows + (plan.n_larger > 0)] && p->n >= DOT_COLUMNS) {
        plan.columns = DOT_COLUMNS;
        plan.tiles = dot_of_eight;
    }
    return plan;
}

/* Of the n columns of a later group, from column on, the share of the tile of row i. */
INLINE void dot_share(const dot_plan *plan, int64_t i, int64_t column, int64_t n,
                      dot_tile *tile)
{
    const ptac_product *p = plan->product;
    const int64_t share = ptac_parts(plan->columns, plan->n_tiles);
    const int64_t first = ptac_least(i * share, n);

    tile->n_fetched = (int)(ptac_least(first + share, n) - first);
    tile->to_fetch = p->b + (column + first) * p->b_column + tile->begin;
}

/* Groups of columns [first, last), terms [begin, end). */
TARGET static void dot_terms(const dot_plan *plan, int64_t first, int64_t last,
                             int64_t begin, int64_t end)
{
    const ptac_product *p = plan->product;
    const int64_t ahead = ptac_parts(DOT_AHEAD, plan->columns * (end - begin));

    for (int64_t group = first; group < last; group++) {
        const int64_t column = group * plan->columns;
        const int64_t later = (group + ahead) * plan->columns;
        const int64_t n_later =
            group + ahead < last ? ptac_least(plan->columns, p->n - later) : 0;
        dot_tile tile = {.product = p, .begin = begin, .end = end};

        tile.column = ptac_least(column, p->n - plan->columns);
        tile.skipped = (int)(column - tile.column);
        for (int64_t i = 0; i < plan->n_tiles; i++) {
            const int n_rows = plan->rows + (i < plan->n_larger);

            dot_share(plan, i, later, n_later, &tile);
            plan->tiles[n_rows](&tile);
            tile.row += n_rows;
        }
    }
}

static void dot_groups(int64_t first, int64_t last, void *context)
{
    const dot_plan *plan = context;
    const int64_t k = plan->product->k;

    for (int64_t begin = 0; begin < k; begin += DOT_TERMS)
        dot_terms(plan, first, last, begin, ptac_least(k, begin + DOT_TERMS));
}

static ptac_status product_dot(const ptac_product *p)
{
    dot_plan plan = dot_plan_of(p);
    const int64_t work = p->m * p->k * plan.columns;

    ptac_parallel_for(0, ptac_parts(p->n, plan.columns), PTAC_PRODUCT_WORK / work + 1,
                      dot_groups, &plan);
    return PTAC_OK;
}
