/*
 * product_packed_tpl.h - products whose lanes are neighbouring columns, from copies in
 * the caches.
 *
 * Of the shorter side of y the terms are laid out once, for the second cache; threads
 * share that. Then they share the longer side, which the first cache holds piece by
 * piece, each laid out as it comes:
 *
 *   by panels  rows are held, in blocks of PACKED_TILES tiles, and panels come
 *   by tiles   columns are held, at most PACKED_HELD of them, and tiles of rows come
 *
 * Sums over PACKED_TERMS terms are added up in y. The order of blocks is K. Goto's and
 * R. van de Geijn's, "Anatomy of high-performance matrix multiplication", ACM TOMS
 * 34(3), 2008.
 */
#include "core/host.h"
#include "core/scratch.h"
#include "ops/product/product_layout_tpl.h"

enum {
    PACKED_TERMS = 256,
    PACKED_TILES = PRODUCT_REGISTERS == 32 ? 36 : 56,
    PACKED_HELD = 512,
    PACKED_NARROW = 128, /* floats from term to term, which the first caches hold */
    PACKED_SHARES = 2,   /* of a thread, at least: panels for groups of tiles */
};

/* Tiles have as many rows as each other, or one more. */
typedef struct packed_job {
    const ptac_product *product;
    int64_t n_tiles, n_panels;
    float *held; /* tiles [k, rows] of a block, or all panels [k, TILE_COLUMNS] */
    /* By panels: tiles [first, last) are the block, in groups that threads share. */
    int64_t first, last, n_groups;
} packed_job;

/* The first row of a tile; of the one behind the last: how many there are. */
INLINE int64_t row_of(const packed_job *job, int64_t tile)
{
    return tile * job->product->m / job->n_tiles;
}

INLINE tile_rows rows_of(const packed_job *job, int64_t tile)
{
    const int64_t first = row_of(job, tile);

    return (tile_rows){first, (int)(row_of(job, tile + 1) - first)};
}

/* Whether tiles do all that is to be done with sums. */
static bool is_plain(const ptac_product *p)
{
    return p->alpha == 1 && (!p->bias || (p->beta == 1 && p->bias_row == 0));
}

/* n columns of a row: sums, or what is in y and sums, scaled, and bias. */
INLINE void finish_row(const ptac_product *p, const float *sums, bool adds,
                       const float *bias, int n, float *y)
{
    FOR_LANES(j, count, 0, n, {
        vec sum = v_load_first(sums + j, count);

        if (adds)
            sum = v_add(v_load_first(y + j, count), sum);
        sum = v_mul(sum, v_set(p->alpha));
        if (bias)
            sum = v_add(sum, v_mul(v_load_first(bias + j, count), v_set(p->beta)));
        v_store_first(y + j, sum, count);
    });
}

/* A tile whose sums are not the whole of it, or that has too few columns. */
INLINE void pass_odd(const ptac_product *p, const panel_part *part,
                     const tile_rows *rows, const tile_place *place)
{
    _Alignas(64) float sums[TILE_ROWS * TILE_COLUMNS];
    const ptac_product only_sums = {.alpha = 1};
    const int n = (int)ptac_least(p->n - part->column, TILE_COLUMNS);
    const bool is_last = part->end == p->k;
    tile_place apart = *place;

    apart.y = sums;
    apart.y_row = TILE_COLUMNS;
    apart.adds = false;
    apart.bias = NULL;
    tiles[rows->n](&apart);
    for (int i = 0; i < rows->n; i++) {
        const float *bias = NULL;

        if (is_last && p->bias)
            bias = p->bias + (rows->first + i) * p->bias_row + part->column;
        finish_row(is_last ? p : &only_sums, sums + i * TILE_COLUMNS, part->begin > 0,
                   bias, n, place->y + i * place->y_row);
    }
}

/* A tile, whose terms of this part are at laid_out, times a panel. */
INLINE void pass(const ptac_product *p, const panel_part *part, const tile_rows *rows,
                 const float *laid_out, const float *panel, int64_t panel_term)
{
    const bool is_last = part->end == p->k;
    const tile_place place = {
        .rows = laid_out,
        .panel = panel,
        .panel_term = panel_term,
        .n_terms = part->end - part->begin,
        .y = p->y + rows->first * p->y_row + part->column,
        .y_row = p->y_row,
        .adds = part->begin > 0,
        .bias = is_last && p->bias ? p->bias + part->column : NULL,
    };

    if (p->n - part->column < TILE_COLUMNS || (is_last && !is_plain(p)))
        pass_odd(p, part, rows, &place);
    else
        tiles[rows->n](&place);
}

/* By panels: */

INLINE float *held_tile(const packed_job *job, int64_t tile)
{
    return job->held + (row_of(job, tile) - row_of(job, job->first)) * job->product->k;
}

TARGET static void hold_tiles(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;

    for (int64_t tile = begin; tile < end; tile++) {
        const tile_rows rows = rows_of(job, tile);

        lay_out_tile(job->product, &rows, 0, job->product->k, held_tile(job, tile));
    }
}

/* Whether b is as good as a panel. */
static bool lies_in_panels(const ptac_product *p, const panel_part *part)
{
    return p->b_column == 1 && p->b_term <= PACKED_NARROW &&
           p->n - part->column >= TILE_COLUMNS;
}

/* Tiles [first, last) times part of a panel. */
INLINE void pass_tiles_of(const packed_job *job, int64_t first, int64_t last,
                          const panel_part *part)
{
    const ptac_product *p = job->product;
    _Alignas(64) float laid_out[PACKED_TERMS * TILE_COLUMNS];
    const float *panel = laid_out;
    int64_t panel_term = TILE_COLUMNS;

    if (lies_in_panels(p, part)) {
        panel = p->b + part->begin * p->b_term + part->column;
        panel_term = p->b_term;
    } else {
        lay_out_panel(p, part, laid_out);
    }
    for (int64_t tile = first; tile < last; tile++) {
        const tile_rows rows = rows_of(job, tile);

        pass(p, part, &rows, held_tile(job, tile) + part->begin * rows.n, panel,
             panel_term);
    }
}

/* Panels [begin, end) for a group of tiles. */
INLINE void pass_group(const packed_job *job, int64_t group, int64_t begin, int64_t end)
{
    const ptac_product *p = job->product;
    const int64_t n = job->last - job->first;
    const int64_t first = job->first + group * n / job->n_groups;
    const int64_t last = job->first + (group + 1) * n / job->n_groups;
    panel_part part = {0};

    for (; part.begin < p->k; part.begin = part.end) {
        part.end = ptac_least(p->k, part.begin + PACKED_TERMS);
        for (int64_t i = begin; i < end; i++) {
            part.column = i * TILE_COLUMNS;
            pass_tiles_of(job, first, last, &part);
        }
    }
}

TARGET static void pass_groups(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;

    for (int64_t i = begin; i < end;) {
        const int64_t panel = i % job->n_panels;
        const int64_t n = ptac_least(end - i, job->n_panels - panel);

        pass_group(job, i / job->n_panels, panel, panel + n);
        i += n;
    }
}

/* That threads have to share; one where nobody shares. */
static int64_t n_shares_of(const ptac_product *p)
{
    const int64_t n_worth = p->m * p->n * p->k / PTAC_PRODUCT_WORK;
    const int64_t n_threads = ptac_least(ptac_the_host.n_threads(), n_worth);

    return n_threads > 1 ? PACKED_SHARES * n_threads : 1;
}

static ptac_status run_by_panels(packed_job *job)
{
    const ptac_product *p = job->product;
    const int64_t n_shares = n_shares_of(p);
    const int64_t n_held = ptac_least(p->m, PACKED_TILES * TILE_ROWS);

    job->held = ptac_scratch_take(sizeof(float) * (size_t)(n_held * p->k));
    if (!job->held)
        return PTAC_FAILED;
    for (; job->first < job->n_tiles; job->first = job->last) {
        const int64_t n = ptac_least(job->n_tiles - job->first, PACKED_TILES);
        int64_t work = p->k * TILE_ROWS;

        job->last = job->first + n;
        job->n_groups = ptac_least(ptac_parts(n_shares, job->n_panels), n);
        ptac_parallel_for(job->first, job->last, PTAC_PRODUCT_WORK / work + 1,
                          hold_tiles, job);
        work *= TILE_COLUMNS * ptac_parts(n, job->n_groups);
        ptac_parallel_for(0, job->n_panels * job->n_groups,
                          PTAC_PRODUCT_WORK / work + 1, pass_groups, job);
    }
    ptac_scratch_give(job->held);
    return PTAC_OK;
}

/* By tiles: */

TARGET static void hold_panels(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const int64_t k = job->product->k;

    for (int64_t i = begin; i < end; i++) {
        const panel_part all = {i * TILE_COLUMNS, 0, k};

        lay_out_panel(job->product, &all, job->held + i * k * TILE_COLUMNS);
    }
}

/* Part of a tile times all panels. */
INLINE void pass_panels_of(const packed_job *job, int64_t tile, panel_part part)
{
    const ptac_product *p = job->product;
    const tile_rows rows = rows_of(job, tile);
    _Alignas(64) float laid_out[PACKED_TERMS * TILE_ROWS + LANES];
    const float *panel = job->held + part.begin * TILE_COLUMNS;

    lay_out_tile(p, &rows, part.begin, part.end, laid_out);
    for (; part.column < p->n; part.column += TILE_COLUMNS) {
        pass(p, &part, &rows, laid_out, panel, TILE_COLUMNS);
        panel += p->k * TILE_COLUMNS;
    }
}

TARGET static void pass_tiles(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const int64_t k = job->product->k;

    for (int64_t tile = begin; tile < end; tile++) {
        panel_part part = {0};

        for (; part.begin < k; part.begin = part.end) {
            part.end = ptac_least(k, part.begin + PACKED_TERMS);
            pass_panels_of(job, tile, part);
        }
    }
}

static ptac_status run_by_tiles(packed_job *job)
{
    const int64_t panel = job->product->k * TILE_COLUMNS;
    const int64_t tile = TILE_ROWS * panel * job->n_panels;

    job->held = ptac_scratch_take(sizeof(float) * (size_t)(job->n_panels * panel));
    if (!job->held)
        return PTAC_FAILED;
    ptac_parallel_for(0, job->n_panels, PTAC_PRODUCT_WORK / panel + 1, hold_panels,
                      job);
    ptac_parallel_for(0, job->n_tiles, PTAC_PRODUCT_WORK / tile + 1, pass_tiles, job);
    ptac_scratch_give(job->held);
    return PTAC_OK;
}

static ptac_status product_packed(const ptac_product *p)
{
    packed_job job = {
        .product = p,
        .n_tiles = ptac_parts(p->m, TILE_ROWS),
        .n_panels = ptac_parts(p->n, TILE_COLUMNS),
    };

    return p->n < p->m && p->n <= PACKED_HELD ? run_by_tiles(&job)
                                              : run_by_panels(&job);
}
