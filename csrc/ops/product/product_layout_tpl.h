/*
 * product_layout_tpl.h - rows of a and columns of b, laid out for the tiles of
 * product_tile_tpl.h.
 */
#include "ops/math/turned_tpl.h"
#include "ops/product/product.h"
#include "ops/product/product_tile_tpl.h"

#include <string.h>

/* Of a tile: at most TILE_ROWS. */
typedef struct tile_rows {
    int64_t first;
    int n;
} tile_rows;

/* count terms of n_rows rows, [count, n_rows], where n_left floats have room. */
INLINE void lay_out_terms(const float *from, int64_t row, int n_rows, int count,
                          int64_t n_left, float *to)
{
    vec terms[LANES];

    load_turned(from, row, n_rows, count, terms);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i >= count)
            continue;
        if (n_left - i * n_rows >= LANES) /* what is too much the next overwrites */
            v_store(to + i * n_rows, terms[i]);
        else
            v_store_first(to + i * n_rows, terms[i], n_rows);
    }
}

/* Rows whose terms lie side by side. */
INLINE void lay_out_rows(const ptac_product *p, int64_t row, int n_rows, int64_t begin,
                         int64_t end, float *to)
{
    const float *from = p->a + row * p->a_row;

    FOR_LANES(k, count, begin, end,
              lay_out_terms(from + k, p->a_row, n_rows, count, (end - k) * n_rows,
                            to + (k - begin) * n_rows));
}

/* Rows that lie side by side. */
INLINE void lay_out_turned(const ptac_product *p, const tile_rows *rows, int64_t begin,
                           int64_t end, float *to)
{
    const float *from = p->a + rows->first + begin * p->a_term;
    const int n_rows = rows->n;

    for (int64_t k = begin; k < end; k++, to += n_rows, from += p->a_term) {
        if (n_rows == TILE_ROWS) /* a constant, and no call */
            memcpy(to, from, sizeof *to * TILE_ROWS);
        else
            memcpy(to, from, sizeof *to * (size_t)n_rows);
    }
}

/* Terms [begin, end) of a tile's rows, [terms, rows]. */
INLINE void lay_out_tile(const ptac_product *p, const tile_rows *rows, int64_t begin,
                         int64_t end, float *to)
{
    if (p->a_term == 1 && rows->n == TILE_ROWS) /* a constant */
        lay_out_rows(p, rows->first, TILE_ROWS, begin, end, to);
    else if (p->a_term == 1)
        lay_out_rows(p, rows->first, rows->n, begin, end, to);
    else
        lay_out_turned(p, rows, begin, end, to);
}

/* Terms [begin, end) of columns from column on, zeros behind the last one. */
typedef struct panel_part {
    int64_t column, begin, end;
} panel_part;

/* count terms of n_columns, term by term. */
INLINE void lay_out_square(const float *from, int64_t column, int n_columns, int count,
                           float *to)
{
    vec terms[LANES];

    load_turned(from, column, n_columns, count, terms);
#pragma GCC unroll 16
    for (int i = 0; i < count; i++)
        v_store(to + i * TILE_COLUMNS, terms[i]);
}

/* A panel of columns whose terms lie side by side. */
INLINE void lay_out_columns(const ptac_product *p, const panel_part *part, float *panel)
{
    for (int half = 0; half < 2; half++) {
        const int64_t first = part->column + half * LANES;
        const int n_columns = (int)ptac_least(p->n - first, LANES);
        const float *from = p->b + first * p->b_column;
        float *to = panel + half * LANES - part->begin * TILE_COLUMNS;

        FOR_LANES(k, count, part->begin, part->end,
                  lay_out_square(from + k, p->b_column, n_columns, count,
                                 to + k * TILE_COLUMNS));
    }
}

/* A panel of terms whose columns lie side by side. */
INLINE void lay_out_side_by_side(const ptac_product *p, const panel_part *part,
                                 float *panel)
{
    const int n = (int)ptac_least(p->n - part->column, TILE_COLUMNS);
    const int low = n < LANES ? n : LANES, high = n - low;
    const float *from = p->b + part->column;

    for (int64_t k = part->begin; k < part->end; k++, panel += TILE_COLUMNS) {
        const float *term = from + k * p->b_term;

        if (n == TILE_COLUMNS) {
            v_store(panel, v_load(term));
            v_store(panel + LANES, v_load(term + LANES));
        } else {
            v_store(panel, v_load_first(term, low));
            v_store(panel + LANES,
                    high > 0 ? v_load_first(term + LANES, high) : v_zero());
        }
    }
}

/* [terms, TILE_COLUMNS]. */
INLINE void lay_out_panel(const ptac_product *p, const panel_part *part, float *panel)
{
    if (p->b_column == 1)
        lay_out_side_by_side(p, part, panel);
    else
        lay_out_columns(p, part, panel);
}
