/*
 * product_packed_tpl.h - products whose lanes are neighbouring columns, from copies in
 * the caches.
 *
 * Threads share y as rectangles, and nothing else: what one of them lays out another
 * one would wait for. Of the shorter side of a rectangle all is laid out once, for the
 * second cache; the longer side passes by, which the first cache holds piece by piece:
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
#include "ops/product/product_shares_tpl.h"

enum {
    PACKED_HELD = 512,
    PACKED_FLOATS = 1 << 21, /* of columns that are held, at most */
    PACKED_NARROW = 128,     /* floats from term to term, which the first caches hold */
};

/* A rectangle. */
typedef struct packed_job {
    const ptac_product *product;
    int64_t n_tiles;
    float *held;   /* tiles of a block, some terms; or all panels [k, TILE_COLUMNS] */
    int64_t first; /* by panels: tile of the block */
    const float *kept; /* all panels, laid out by an earlier product; or NULL */
} packed_job;

INLINE tile_rows rows_of(const packed_job *job, int64_t tile)
{
    return tile_of(job->product->m, job->n_tiles, tile);
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

/* A panel where it lies, and what is fetched while it is read; NULL: nothing. */
typedef struct panel_place {
    const float *at;
    int64_t term; /* from term to term */
    const float *ahead;
    int64_t ahead_term;
} panel_place;

/* A tile, whose terms of this part are at laid_out, times a panel. */
INLINE void pass(const ptac_product *p, const panel_part *part, const tile_rows *rows,
                 const float *laid_out, const panel_place *panel)
{
    const bool is_last = part->end == p->k;
    const tile_place place = {
        .rows = laid_out,
        .panel = panel->at,
        .panel_term = panel->term,
        .ahead = panel->ahead,
        .ahead_term = panel->ahead_term,
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
    const int64_t top = rows_of(job, job->first).first;

    return job->held + (rows_of(job, tile).first - top) * PACKED_TERMS;
}

/* Whether b is as good as a panel. */
static bool lies_in_panels(const ptac_product *p, const panel_part *part)
{
    return p->b_column == 1 && p->b_term <= PACKED_NARROW &&
           p->n - part->column >= TILE_COLUMNS;
}

/* Lines that the i-th tile fetches of the panel that comes next, where it is kept. */
INLINE void fetch_kept(const packed_job *job, const panel_part *part, int64_t i,
                       panel_place *panel)
{
    const ptac_product *p = job->product;
    const int64_t n_terms = part->end - part->begin;
    const bool is_last = part->column + TILE_COLUMNS >= p->n;
    const float *next = is_last ? job->kept + part->end * TILE_COLUMNS
                                : panel->at + p->k * TILE_COLUMNS;

    panel->ahead = NULL;
    if (i < TILE_COLUMNS / TILE_LINE && !(is_last && part->end == p->k))
        panel->ahead = next + i * n_terms * TILE_LINE;
    panel->ahead_term = panel->ahead ? TILE_LINE : 0;
}

/*
 * Likewise where columns lie as they lie: side by side, of each term a line; else, of
 * as many columns as there are terms, a line that is another one for each tile.
 */
INLINE void fetch_columns(const packed_job *job, const panel_part *part, int64_t i,
                          panel_place *panel)
{
    const ptac_product *p = job->product;
    const int64_t column = part->column + TILE_COLUMNS;
    const float *next =
        column < p->n ? p->b + part->begin * p->b_term + column * p->b_column : NULL;

    if (p->b_column == 1) {
        panel->ahead = line_of_panel(next, i);
        panel->ahead_term = panel->ahead ? p->b_term : 0;
    } else {
        const int64_t turn = part->column / TILE_COLUMNS * job->n_tiles + i;

        panel->ahead =
            next ? next + turn % (PACKED_TERMS / TILE_LINE) * TILE_LINE : NULL;
        panel->ahead_term = panel->ahead ? p->b_column : 0;
    }
}

/* Tiles [first, last) times part of a panel. */
INLINE void pass_tiles_of(const packed_job *job, int64_t first, int64_t last,
                          const panel_part *part)
{
    const ptac_product *p = job->product;
    _Alignas(64) float laid_out[PACKED_TERMS * TILE_COLUMNS];
    panel_place panel = {.at = laid_out, .term = TILE_COLUMNS};

    if (job->kept) {
        panel.at = job->kept + part->column * p->k + part->begin * TILE_COLUMNS;
    } else if (lies_in_panels(p, part)) {
        panel.at = p->b + part->begin * p->b_term + part->column;
        panel.term = p->b_term;
    } else {
        lay_out_panel(p, part, laid_out);
    }
    for (int64_t tile = first; tile < last; tile++) {
        const tile_rows rows = rows_of(job, tile);

        if (job->kept)
            fetch_kept(job, part, tile - first, &panel);
        else if (panel.at == laid_out)
            fetch_columns(job, part, tile - first, &panel);
        pass(p, part, &rows, held_tile(job, tile), &panel);
    }
}

/* A block of tiles, up to the last one. */
INLINE void run_block(const packed_job *job, int64_t last)
{
    const ptac_product *p = job->product;
    panel_part part = {0};

    for (; part.begin < p->k; part.begin = part.end) {
        part.end = ptac_least(p->k, part.begin + PACKED_TERMS);
        for (int64_t tile = job->first; tile < last; tile++) {
            const tile_rows rows = rows_of(job, tile);

            lay_out_tile(p, &rows, part.begin, part.end, held_tile(job, tile));
        }
        for (part.column = 0; part.column < p->n; part.column += TILE_COLUMNS)
            pass_tiles_of(job, job->first, last, &part);
    }
}

INLINE void run_by_panels(packed_job *job)
{
    while (job->first < job->n_tiles) {
        const int64_t last = ptac_least(job->n_tiles, job->first + PACKED_TILES);

        run_block(job, last);
        job->first = last;
    }
}

/* By tiles: */

/* Part of a tile times all panels. */
INLINE void pass_panels_of(const packed_job *job, int64_t tile, panel_part part)
{
    const ptac_product *p = job->product;
    const tile_rows rows = rows_of(job, tile);
    _Alignas(64) float laid_out[PACKED_TERMS * TILE_ROWS + LANES];
    const float *panel =
        (job->kept ? job->kept : job->held) + part.begin * TILE_COLUMNS;

    lay_out_tile(p, &rows, part.begin, part.end, laid_out);
    for (; part.column < p->n; part.column += TILE_COLUMNS) {
        pass(p, &part, &rows, laid_out,
             &(panel_place){.at = panel, .term = TILE_COLUMNS});
        panel += p->k * TILE_COLUMNS;
    }
}

INLINE void run_by_tiles(const packed_job *job)
{
    const ptac_product *p = job->product;
    float *panel = job->held;

    for (int64_t j = 0; j < p->n && !job->kept; j += TILE_COLUMNS) {
        const panel_part all = {j, 0, p->k};

        lay_out_panel(p, &all, panel);
        panel += p->k * TILE_COLUMNS;
    }
    for (int64_t tile = 0; tile < job->n_tiles; tile++) {
        panel_part part = {0};

        for (; part.begin < p->k; part.begin = part.end) {
            part.end = ptac_least(p->k, part.begin + PACKED_TERMS);
            pass_panels_of(job, tile, part);
        }
    }
}

/* Threads': */

INLINE bool is_by_tiles(int64_t n_rows, int64_t n_columns, int64_t n_terms)
{
    return n_columns < n_rows && n_columns <= PACKED_HELD &&
           n_columns * n_terms <= PACKED_FLOATS;
}

INLINE void run_share(const packed_shares *s, int64_t i)
{
    const int64_t down = i / s->n_across, across = i % s->n_across;
    const int64_t row = begin_of(down, s->most_rows, s->product->m);
    const int64_t column = begin_of(across, s->most_columns, s->product->n);
    ptac_product p = *s->product;
    packed_job job = {.product = &p, .held = s->scratch + i * s->most_held};

    if (p.kept)
        job.kept = (const float *)p.kept->data + column * p.k;
    p.m = begin_of(down + 1, s->most_rows, p.m) - row;
    p.n = begin_of(across + 1, s->most_columns, p.n) - column;
    if (p.m == 0 || p.n == 0)
        return;
    p.a += row * p.a_row;
    p.b += column * p.b_column;
    p.y += row * p.y_row + column;
    if (p.bias)
        p.bias += row * p.bias_row + column;
    job.n_tiles = ptac_parts(p.m, TILE_ROWS);
    if (is_by_tiles(p.m, p.n, p.k))
        run_by_tiles(&job);
    else
        run_by_panels(&job);
}

TARGET static void run_shares(int64_t begin, int64_t end, void *context)
{
    for (int64_t i = begin; i < end; i++)
        run_share(context, i);
}

/* Panels [begin, end) into what is kept. */
TARGET static void keep_panels(int64_t begin, int64_t end, void *context)
{
    const ptac_product *p = context;

    for (int64_t i = begin; i < end; i++) {
        const panel_part all = {i * TILE_COLUMNS, 0, p->k};

        lay_out_panel(p, &all, (float *)p->kept->data + all.column * p->k);
    }
}

/* Panels have zeros behind the last column: the last one is cleared first. */
static void keep(const ptac_product *p)
{
    static const char us[] = "packed_" ISA;
    const int64_t n = ptac_parts(p->n, TILE_COLUMNS);
    const size_t panel = sizeof(float) * (size_t)(TILE_COLUMNS * p->k);

    if (p->kept->maker == us)
        return;
    memset((char *)p->kept->data + (size_t)(n - 1) * panel, 0, panel);
    ptac_parallel_for(0, n, 1, keep_panels, (void *)p);
    p->kept->maker = us;
}

static ptac_status product_packed(const ptac_product *p)
{
    packed_shares s = best_shares(p);
    const int64_t n = s.n_down * s.n_across;
    const int64_t n_rows = ptac_least(s.most_rows, PACKED_TILES * TILE_ROWS);
    const int64_t n_columns = ptac_least(s.most_columns, PACKED_HELD);

    s.most_held = PACKED_TERMS * n_rows;
    if (s.most_held < n_columns * p->k)
        s.most_held = ptac_least(n_columns * p->k, PACKED_FLOATS);
    s.scratch = ptac_scratch_take(sizeof(float) * (size_t)(n * s.most_held));
    if (!s.scratch)
        return PTAC_FAILED;
    if (p->kept)
        keep(p);
    ptac_parallel_for(0, n, 1, run_shares, &s);
    ptac_scratch_give(s.scratch);
    return PTAC_OK;
}
