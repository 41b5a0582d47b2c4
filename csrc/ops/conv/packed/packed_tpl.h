/*
 * packed_tpl.h - kernels of 1x1 as products of tiles of weights and panels of places.
 *
 * The includer defines, besides lanes, ISA, NEEDS, and PRODUCT_REGISTERS: how many
 * vectors fit into registers.
 */
#include "core/scratch.h"
#include "ops/conv/packed/packed.h"
#include "ops/product/product_shares_tpl.h"

enum {
    WEIGHT_TERMS = 64, /* of a part, that are added up before others; rounding less */
};

/* A convolution cut for threads, and into tiles, as large as others or a row larger. */
typedef struct packed_job {
    const ptac_packed_conv *conv;
    bool is_weight;
    packed_shares shares;
    int64_t n_tiles;
    float *tiles; /* of weights, [terms, rows] each; of a gradient one block a share */
} packed_job;

/* Neighbouring places of a panel that are of one image. */
typedef struct run {
    int first, n; /* in the panel */
    int64_t image, place;
} run;

INLINE int64_t n_columns_of(const packed_job *job)
{
    return job->shares.product->n;
}

INLINE tile_rows rows_of(const packed_job *job, int64_t tile)
{
    return tile_of(job->conv->image.m, job->n_tiles, tile);
}

/* The run behind that one, of n columns; false: there is none. */
INLINE bool go_on(const ptac_packed_conv *conv, int64_t column, int n, run *at)
{
    at->first += at->n;
    if (at->first == n)
        return false;
    at->image = (column + at->first) / conv->image.n;
    at->place = (column + at->first) % conv->image.n;
    at->n = (int)ptac_least(conv->image.n - at->place, n - at->first);
    return true;
}

INLINE int columns_of(const packed_job *job, int64_t column)
{
    return (int)ptac_least(n_columns_of(job) - column, TILE_COLUMNS);
}

/* --- forward, and the gradient of the data ---------------------------------------- */

/* Terms of a run's places, to where it lies in a panel. */
INLINE void lay_out_run(const float *from, int64_t term, int n, int64_t n_terms,
                        float *to)
{
    const int low = n < LANES ? n : LANES, high = n - low;

    for (int64_t k = 0; k < n_terms; k++, from += term, to += TILE_COLUMNS) {
        if (n == TILE_COLUMNS) {
            v_store(to, v_load(from));
            v_store(to + LANES, v_load(from + LANES));
        } else {
            v_store_first(to, v_load_first(from, low), low);
            if (high > 0)
                v_store_first(to + LANES, v_load_first(from + LANES, high), high);
        }
    }
}

INLINE void lay_out_places(const packed_job *job, const panel_part *part, float *panel)
{
    const ptac_packed_conv *conv = job->conv;
    const int n = columns_of(job, part->column);
    run at = {0};

    if (n < TILE_COLUMNS)
        memset(panel, 0, sizeof *panel * PACKED_TERMS * TILE_COLUMNS);
    while (go_on(conv, part->column, n, &at))
        lay_out_run(conv->image.b + at.image * conv->b_image + at.place +
                        part->begin * conv->image.b_term,
                    conv->image.b_term, at.n, part->end - part->begin,
                    panel + at.first);
}

/* n sums of a row, or what is in y and sums; where they are the last, what follows. */
INLINE void give_row(const ptac_packed_conv *conv, int64_t row, const float *sums,
                     bool adds, bool is_last, int n, float *y)
{
    FOR_LANES(j, count, 0, n, {
        vec sum = v_load_first(sums + j, count);

        if (adds)
            sum = v_add(v_load_first(y + j, count), sum);
        if (is_last && conv->scale)
            sum = v_mul(sum, v_set(conv->scale[row]));
        if (is_last && conv->shift)
            sum = v_add(sum, v_set(conv->shift[row]));
        if (is_last)
            sum = v_min(v_set(conv->most), v_max(v_set(conv->least), sum));
        v_store_first(y + j, sum, count);
    });
}

INLINE bool is_plain(const ptac_packed_conv *conv)
{
    return !conv->scale && !conv->shift && conv->least == -INFINITY;
}

/* Sums of a tile to runs of places. */
INLINE void give_tile(const packed_job *job, const tile_rows *rows,
                      const panel_part *part, const float *sums)
{
    const ptac_packed_conv *conv = job->conv;
    const int n = columns_of(job, part->column);
    run at = {0};

    while (go_on(conv, part->column, n, &at)) {
        float *y = conv->image.y + at.image * conv->y_image +
                   rows->first * conv->image.y_row + at.place;

        for (int i = 0; i < rows->n; i++, y += conv->image.y_row)
            give_row(conv, rows->first + i, sums + i * TILE_COLUMNS + at.first,
                     part->begin > 0, part->end == conv->image.k, at.n, y);
    }
}

/* Fetch where a tile's sums go. */
INLINE void fetch_results(const packed_job *job, const tile_rows *rows,
                          const panel_part *part)
{
    const ptac_packed_conv *conv = job->conv;
    const int n = columns_of(job, part->column);
    run at = {0};

    while (go_on(conv, part->column, n, &at)) {
        const float *y = conv->image.y + at.image * conv->y_image +
                         rows->first * conv->image.y_row + at.place;

        for (int i = 0; i < rows->n; i++, y += conv->image.y_row) {
            for (int j = 0; j < at.n; j += TILE_LINE)
                __builtin_prefetch(y + j, 1, 2);
            __builtin_prefetch(y + at.n - 1, 1, 2);
        }
    }
}

/* The panel that comes next, as its first term lies; NULL: there is none. */
INLINE const float *next_panel(const packed_job *job, const panel_part *part,
                               int64_t end)
{
    const ptac_packed_conv *conv = job->conv;
    const int64_t column = part->column + TILE_COLUMNS;
    const int64_t image = column / conv->image.n, place = column % conv->image.n;

    return column < end ? conv->image.b + image * conv->b_image +
                              part->begin * conv->image.b_term + place
                        : NULL;
}

/* A tile of weights, from term part->begin on, times a panel. */
INLINE void pass_places(const packed_job *job, const tile_rows *rows,
                        const panel_part *part, const float *weights,
                        const float *panel, const float *ahead)
{
    const ptac_packed_conv *conv = job->conv;
    const int64_t image = part->column / conv->image.n;
    const int64_t place = part->column % conv->image.n;
    const bool is_last = part->end == conv->image.k;
    const bool is_direct =
        place + TILE_COLUMNS <= conv->image.n && (!is_last || is_plain(conv));
    _Alignas(64) float sums[TILE_ROWS * TILE_COLUMNS];

    if (!is_direct)
        fetch_results(job, rows, part);
    tiles[rows->n](&(tile_place){
        .rows = weights,
        .panel = panel,
        .panel_term = TILE_COLUMNS,
        .n_terms = part->end - part->begin,
        .y = is_direct ? conv->image.y + image * conv->y_image +
                             rows->first * conv->image.y_row + place
                       : sums,
        .y_row = is_direct ? conv->image.y_row : TILE_COLUMNS,
        .adds = is_direct && part->begin > 0,
        .ahead = ahead,
        .ahead_term = ahead ? conv->image.b_term : 0,
    });
    if (!is_direct)
        give_tile(job, rows, part, sums);
}

/* Tiles [first, last) times panels of columns [begin, end). */
INLINE void run_places(const packed_job *job, int64_t first, int64_t last,
                       int64_t begin, int64_t end)
{
    const int64_t k = job->conv->image.k;
    _Alignas(64) float panel[PACKED_TERMS * TILE_COLUMNS];
    panel_part part = {0};

    for (; part.begin < k; part.begin = part.end) {
        part.end = ptac_least(k, part.begin + PACKED_TERMS);
        for (part.column = begin; part.column < end; part.column += TILE_COLUMNS) {
            const float *next = next_panel(job, &part, end);

            lay_out_places(job, &part, panel);
            for (int64_t tile = first; tile < last; tile++) {
                const tile_rows rows = rows_of(job, tile);

                pass_places(job, &rows, &part,
                            job->tiles + rows.first * k + part.begin * rows.n, panel,
                            line_of_panel(next, tile - first));
            }
        }
    }
}

/* --- the gradient of the weight --------------------------------------------------- */

/* Images and their places [begin, end) of terms, from a term on. */
typedef struct terms_run {
    int64_t at, image, begin, end;
} terms_run;

/* The run that begins with a term, of those before last. */
INLINE terms_run run_from(const ptac_packed_conv *conv, int64_t term, int64_t last)
{
    const int64_t image = term / conv->image.k, begin = term % conv->image.k;

    return (terms_run){term, image, begin,
                       ptac_least(conv->image.k, begin + last - term)};
}

/* A product whose first image is that of a run. */
INLINE ptac_product image_of(const ptac_packed_conv *conv, const terms_run *run)
{
    ptac_product p = conv->image;

    p.a += run->image * conv->a_image;
    p.b += run->image * conv->b_image;
    return p;
}

INLINE void lay_out_grad(const ptac_packed_conv *conv, const tile_rows *rows,
                         const panel_part *part, float *to)
{
    for (int64_t term = part->begin; term < part->end;) {
        const terms_run run = run_from(conv, term, part->end);
        const ptac_product p = image_of(conv, &run);

        lay_out_tile(&p, rows, run.begin, run.end, to);
        to += (run.end - run.begin) * rows->n;
        term += run.end - run.begin;
    }
}

INLINE void lay_out_x(const ptac_packed_conv *conv, const panel_part *part, float *to)
{
    for (int64_t term = part->begin; term < part->end;) {
        const terms_run run = run_from(conv, term, part->end);
        const ptac_product p = image_of(conv, &run);

        lay_out_panel(&p, &(panel_part){part->column, run.begin, run.end}, to);
        to += (run.end - run.begin) * TILE_COLUMNS;
        term += run.end - run.begin;
    }
}

/*
 * A tile of grad times a panel of x. Terms are added up some at a time, and these sums
 * before they come to those of other parts, so that they round less.
 */
INLINE void pass_weight(const ptac_packed_conv *conv, const tile_rows *rows,
                        const panel_part *part, const float *grad, const float *panel)
{
    const int n = (int)ptac_least(conv->image.n - part->column, TILE_COLUMNS);
    const int64_t n_terms = part->end - part->begin;
    _Alignas(64) float sums[TILE_ROWS * TILE_COLUMNS];
    float *y = conv->image.y + rows->first * conv->image.y_row + part->column;

    for (int i = 0; i < rows->n; i++) {
        __builtin_prefetch(y + i * conv->image.y_row, 1, 2);
        __builtin_prefetch(y + i * conv->image.y_row + n - 1, 1, 2);
    }
    for (int64_t k = 0; k < n_terms; k += WEIGHT_TERMS)
        tiles[rows->n](&(tile_place){
            .rows = grad + k * rows->n,
            .panel = panel + k * TILE_COLUMNS,
            .panel_term = TILE_COLUMNS,
            .n_terms = ptac_least(WEIGHT_TERMS, n_terms - k),
            .y = sums,
            .y_row = TILE_COLUMNS,
            .adds = k > 0,
        });
    for (int i = 0; i < rows->n; i++)
        give_row(conv, 0, sums + i * TILE_COLUMNS, part->begin > 0, false, n,
                 y + i * conv->image.y_row);
}

/* A block of tiles, [first, last), times panels [begin, end) of x, of all images. */
INLINE void run_weight(const packed_job *job, float *held, const int64_t block[2],
                       int64_t begin, int64_t end)
{
    const ptac_packed_conv *conv = job->conv;
    const int64_t n_terms = conv->n_images * conv->image.k;
    const int64_t top = rows_of(job, block[0]).first;
    _Alignas(64) float panel[PACKED_TERMS * TILE_COLUMNS];
    panel_part part = {0};

    for (; part.begin < n_terms; part.begin = part.end) {
        part.end = ptac_least(n_terms, part.begin + PACKED_TERMS);
        for (int64_t tile = block[0]; tile < block[1]; tile++) {
            const tile_rows rows = rows_of(job, tile);

            lay_out_grad(conv, &rows, &part, held + (rows.first - top) * PACKED_TERMS);
        }
        for (part.column = begin; part.column < end; part.column += TILE_COLUMNS) {
            lay_out_x(conv, &part, panel);
            for (int64_t tile = block[0]; tile < block[1]; tile++) {
                const tile_rows rows = rows_of(job, tile);

                pass_weight(conv, &rows, &part,
                            held + (rows.first - top) * PACKED_TERMS, panel);
            }
        }
    }
}

/* --- threads' --------------------------------------------------------------------- */

TARGET static void run_packed_shares(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const packed_shares *s = &job->shares;

    for (int64_t i = begin; i < end; i++) {
        const int64_t down = i / s->n_across, across = i % s->n_across;
        const int64_t n_down = s->most_rows / TILE_ROWS;
        const int64_t last = begin_of(down + 1, n_down, job->n_tiles);
        const int64_t left = begin_of(across, s->most_columns, n_columns_of(job));
        const int64_t right = begin_of(across + 1, s->most_columns, n_columns_of(job));
        int64_t block[2] = {begin_of(down, n_down, job->n_tiles)};

        for (; block[0] < last; block[0] = block[1]) {
            block[1] = ptac_least(last, block[0] + PACKED_TILES);
            if (job->is_weight)
                run_weight(job, job->tiles + i * s->most_held, block, left, right);
            else
                run_places(job, block[0], block[1], left, right);
        }
    }
}

TARGET static void lay_out_weights(int64_t begin, int64_t end, void *context)
{
    const packed_job *job = context;
    const ptac_product *p = &job->conv->image;

    for (int64_t tile = begin; tile < end; tile++) {
        const tile_rows rows = rows_of(job, tile);

        lay_out_tile(p, &rows, 0, p->k, job->tiles + rows.first * p->k);
    }
}

/* Weights laid out, in what is kept where that may be; NULL: in the scratch. */
static void have_weights(packed_job *job, ptac_kept *kept)
{
    static const char us[] = "packed_" ISA;

    if (kept && kept->maker == us)
        return;
    if (kept)
        kept->maker = NULL; /* while it is written */
    ptac_parallel_for(0, job->n_tiles, 1, lay_out_weights, job);
    if (kept)
        kept->maker = us;
}

static ptac_status run_packed(const ptac_call *call)
{
    const ptac_conv2d *p = call->params;
    const bool is_weight = p->result == PTAC_CONV_WEIGHT;
    const ptac_packed_conv conv = ptac_packed_conv_of(call);
    ptac_kept *kept = is_weight ? NULL : call->kept;
    ptac_product whole = conv.image;
    packed_job job = {.conv = &conv,
                      .is_weight = is_weight,
                      .n_tiles = ptac_parts(whole.m, TILE_ROWS)};
    float *scratch = NULL;
    int64_t n_floats = whole.m * whole.k;

    *(is_weight ? &whole.k : &whole.n) *= conv.n_images;
    job.shares = best_shares(&whole);
    if (is_weight) {
        job.shares.most_held =
            PACKED_TERMS * ptac_least(job.shares.most_rows, PACKED_TILES * TILE_ROWS);
        n_floats = job.shares.n_down * job.shares.n_across * job.shares.most_held;
    }
    if (!kept)
        scratch = ptac_scratch_take(sizeof *scratch * (size_t)n_floats);
    if (!kept && !scratch)
        return PTAC_NO_MEMORY;
    job.tiles = kept ? kept->data : scratch;
    if (!is_weight)
        have_weights(&job, kept);
    ptac_parallel_for(0, job.shares.n_down * job.shares.n_across, 1, run_packed_shares,
                      &job);
    ptac_scratch_give(scratch);
    if (is_weight && call->n_outputs > 1)
        ptac_conv_bias_gradient(&call->inputs[1], call->outputs[1].data);
    return PTAC_OK;
}

PTAC_CONV_ROW(CONV2D, "packed", 0, PTAC_CLOSE, ptac_packed_conv_accepts, run_packed,
              .asks_table = true, .pays = ptac_packed_conv_pays,
              .kept_bytes = ptac_packed_conv_kept_bytes)
PTAC_CONV_ROW(CONV2D_BACKWARD, "packed", 0, PTAC_CLOSE, ptac_packed_conv_accepts,
              run_packed, .asks_table = true, .pays = ptac_packed_conv_pays)
