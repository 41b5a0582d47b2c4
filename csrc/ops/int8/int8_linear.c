/*
 * int8_linear.c - blocking and threads of int8_linear, for every instruction set.
 *
 * First the rows of x become bytes, then threads share out rectangles of row tiles and
 * panels. A rectangle goes through its panels once for each block of rows that stays in
 * the second cache beside a panel.
 */
#include "ops/int8/int8_linear.h"

#include "core/host.h"
#include "core/scratch.h"

enum {
    BLOCK_BYTES = 384 << 10, /* of activations that stay in cache */
    ALL_BYTES = 4 << 20,     /* of activations that are quantized at a time */
    GRAIN_QUANTIZE = 1 << 15,
    GRAIN_SINGLE = 1 << 18, /* the same of a single row, whose weights have to come */
};

/* A piece of the call: so many rows that their bytes fit in scratch. */
typedef struct linear_job {
    const ptac_int8_isa *isa;
    const ptac_int8_linear *p;
    ptac_packed_shape shape;
    const float *x;
    const int8_t *packed;
    const float *scales, *bias;
    float *y;
    bool is_far; /* y is in no cache */
    int64_t m;
    int64_t pitch; /* bytes from one quantized row to the next */
    uint8_t *q;
    ptac_row_scale *rows;
    int64_t n_panels, tile_parts, panel_parts;
} linear_job;

ptac_row_scale ptac_int8_quantize_row(const ptac_int8_isa *isa, const float *x,
                                      int64_t k, uint8_t *q)
{
    ptac_range range = {0};
    ptac_row_scale scale;

    isa->measure(x, k, &range);
    scale = ptac_scale_of(&range, 255.0f);
    isa->quantize(x, k, scale.inverse, (float)scale.zero, q);
    return scale;
}

static void quantize_rows(int64_t begin, int64_t end, void *context)
{
    const linear_job *job = context;
    const ptac_int8_linear *p = job->p;

    for (int64_t r = begin; r < end; r++)
        job->rows[r] = ptac_int8_quantize_row(job->isa, job->x + r * p->x_stride, p->k,
                                              job->q + r * job->pitch);
}

static ptac_epilogue epilogue_of(const linear_job *job, int64_t first)
{
    return (ptac_epilogue){
        .column_sums = ptac_packed_sums(&job->shape, job->packed) + first,
        .column_scales = job->scales + first,
        .bias = job->bias ? job->bias + first : NULL,
        .n_columns = (int)ptac_least(job->p->n - first, PTAC_PANEL),
        .relu = job->p->relu,
    };
}

/*
 * y's lines travel while the sums are made: it is larger than caches where the call is
 * large, and storing to a line waits for it.
 */
static void fetch_line(const float *y, int n)
{
    for (int i = 0; i < n; i += PTAC_LANES)
        __builtin_prefetch(y + i, 1);
}

/* A panel's sums, turned into y, of n_rows rows from row on. */
static void multiply_tile(const linear_job *job, ptac_tile *tile,
                          const ptac_epilogue *e, int64_t row, int n_rows, float *y)
{
    _Alignas(64) int32_t sums[PTAC_MOST_TILE_ROWS * PTAC_PANEL];

    for (int r = 0; r < n_rows; r++) {
        tile->rows[r] = job->q + (row + r) * job->pitch;
        if (job->is_far)
            fetch_line(y + r * job->p->n, e->n_columns);
    }
    job->isa->sum(tile, n_rows, (int)ptac_parts(e->n_columns, PTAC_LANES), sums);
    job->isa->finish(e, sums, n_rows, job->rows + row, y, job->p->n);
}

/* Of a panel, still without its rows, which are too many to be cleared. */
static void begin_tile(const linear_job *job, int64_t first, ptac_tile *tile)
{
    static const int64_t no_offset = 0;

    tile->segments = &no_offset;
    tile->n_segments = 1;
    tile->n_quads = job->pitch / PTAC_QUAD;
    tile->panel = job->packed + first * job->pitch;
}

/* Rows begin..end of one panel, in tiles as even as can be: 7 rows are 4 and 3. */
static void multiply_panel(const linear_job *job, int64_t panel, int64_t begin,
                           int64_t end)
{
    const int64_t first = panel * PTAC_PANEL;
    const int64_t n_tiles = ptac_parts(end - begin, job->isa->tile_rows);
    const int64_t least = (end - begin) / n_tiles, n_more = (end - begin) % n_tiles;
    const ptac_epilogue e = epilogue_of(job, first);
    float *y = job->y + begin * job->p->n + first;
    ptac_tile tile;

    begin_tile(job, first, &tile);
    for (int64_t t = 0, row = begin; t < n_tiles; t++) {
        const int n_rows = (int)(least + (t < n_more));

        multiply_tile(job, &tile, &e, row, n_rows, y);
        row += n_rows;
        y += n_rows * job->p->n;
    }
}

void ptac_int8_multiply_rows(const ptac_int8_isa *isa, const ptac_int8_weight *weight,
                             const uint8_t *q, const ptac_row_scale *rows, int64_t m,
                             float *y)
{
    const ptac_int8_linear p = {
        .m = m, .n = weight->n, .k = weight->k, .relu = weight->relu};
    const linear_job job = {
        .isa = isa,
        .is_far = !weight->y_is_near,
        .p = &p,
        .shape = {.n = p.n, .c = p.k, .taps = 1, .groups = 1},
        .packed = weight->packed,
        .scales = weight->scales,
        .bias = weight->bias,
        .pitch = ptac_int8_pitch(p.k),
        .q = (uint8_t *)q,
        .rows = (ptac_row_scale *)rows,
        .y = y,
    };

    for (int64_t panel = 0; panel * PTAC_PANEL < p.n; panel++)
        multiply_panel(&job, panel, 0, m);
}

static void multiply_parts(int64_t begin, int64_t end, void *context)
{
    linear_job *job = context;
    const int tile_rows = job->isa->tile_rows;
    int64_t block = BLOCK_BYTES / job->pitch / tile_rows * tile_rows;

    if (block < tile_rows)
        block = tile_rows;
    for (int64_t part = begin; part < end; part++) {
        const int64_t i = part / job->panel_parts, j = part % job->panel_parts;
        const int64_t last_row = job->m * (i + 1) / job->tile_parts;
        const int64_t last_panel = job->n_panels * (j + 1) / job->panel_parts;

        for (int64_t r = job->m * i / job->tile_parts; r < last_row; r += block) {
            const int64_t last = ptac_least(r + block, last_row);

            if (job->panel_parts == 1)
                quantize_rows(r, last, job);
            for (int64_t n = job->n_panels * j / job->panel_parts; n < last_panel; n++)
                multiply_panel(job, n, r, last);
        }
    }
}

/*
 * As many rectangles as threads: along the panels while rows are few, so that a thread
 * reads its weights only; else along the rows.
 */
static void share_out(linear_job *job, int n_threads)
{
    const int64_t n_tiles = ptac_parts(job->m, PTAC_TILE_ROWS);

    job->tile_parts = job->panel_parts = 1;
    if (n_threads <= 1 ||
        job->m * job->p->n * job->pitch < 2 * (int64_t)PTAC_INT8_GRAIN)
        return;
    if (n_tiles < 8 * (int64_t)n_threads)
        job->panel_parts = ptac_least(n_threads, job->n_panels);
    job->tile_parts = ptac_least(n_threads / job->panel_parts, n_tiles);
}

static void multiply(linear_job *job, int n_threads)
{
    share_out(job, n_threads);
    if (job->panel_parts > 1)
        ptac_parallel_for(0, job->m, 1 + GRAIN_QUANTIZE / job->pitch, quantize_rows,
                          job);
    ptac_parallel_for(0, job->tile_parts * job->panel_parts, 1, multiply_parts, job);
}

static void multiply_panels16(int64_t begin, int64_t end, void *context)
{
    const linear_job *job = context;
    _Alignas(64) int32_t sums[2 * PTAC_PANEL];

    for (int64_t panel = begin; panel < end; panel++) {
        const int64_t first = panel * PTAC_PANEL;
        const ptac_epilogue e = epilogue_of(job, first);
        ptac_tile tile;

        begin_tile(job, first, &tile);
        tile.rows[0] = job->q;
        tile.rows[1] = job->q + job->pitch;
        job->isa->sum(&tile, 2, (int)ptac_parts(e.n_columns, PTAC_LANES), sums);
        job->isa->finish16(&e, sums, job->rows[0], job->y + first);
    }
}

/* A single row, as two of bytes. */
static void multiply16(linear_job *job)
{
    const ptac_int8_linear *p = job->p;
    const int64_t grain = 1 + GRAIN_SINGLE / (PTAC_PANEL * job->pitch);
    ptac_range range = {0};

    job->isa->measure(job->x, p->k, &range);
    job->rows[0] = ptac_scale_of(&range, 65535.0f);
    job->isa->quantize16(job->x, p->k, job->rows[0].inverse, (float)job->rows[0].zero,
                         job->q, job->q + job->pitch);
    ptac_parallel_for(0, job->n_panels, grain, multiply_panels16, job);
}

ptac_reason ptac_int8_linear_accepts(const ptac_call *call)
{
    const ptac_int8_linear *p = call->params;
    const int64_t y[] = {p->m, p->n};

    if (!ptac_int8_is_aligned(call))
        return PTAC_LAYOUT;
    return p->k > PTAC_INT8_MOST_TERMS || !ptac_int8_is_countable(y, 2) ? PTAC_SHAPE
                                                                        : PTAC_TAKE;
}

ptac_status ptac_int8_linear_run(const ptac_call *call, const ptac_int8_isa *isa)
{
    const ptac_int8_linear *p = call->params;
    const int64_t pitch = ptac_int8_pitch(p->k);
    const int64_t most = pitch < ALL_BYTES ? ALL_BYTES / pitch : 1;
    const int64_t m = ptac_least(p->m, most);
    const size_t bytes = (size_t)((m + 1) * pitch + 64);
    uint8_t *scratch = ptac_scratch_take(bytes + (size_t)m * sizeof(ptac_row_scale));
    linear_job job = {
        .isa = isa,
        .p = p,
        .shape = {.n = p->n, .c = p->k, .taps = 1, .groups = 1},
        .packed = call->inputs[1].data,
        .scales = call->inputs[2].data,
        .bias = call->n_inputs > 3 ? call->inputs[3].data : NULL,
        .is_far = true,
        .pitch = pitch,
        .n_panels = ptac_parts(p->n, PTAC_PANEL),
    };

    if (!scratch)
        return PTAC_NO_MEMORY;
    job.q = scratch;
    job.rows = (ptac_row_scale *)(scratch + bytes / 64 * 64);
    for (int64_t first = 0; first < p->m; first += m) {
        job.x = (const float *)call->inputs[0].data + first * p->x_stride;
        job.y = (float *)call->outputs[0].data + first * p->n;
        job.m = ptac_least(p->m - first, m);
        if (p->m == 1)
            multiply16(&job);
        else
            multiply(&job, call->n_threads);
    }
    ptac_scratch_give(scratch);
    return PTAC_OK;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_int8_linear *p = call->params;

    if (p->m == 0 || p->n == 0 || p->k == 0)
        return PTAC_EMPTY;
    shape->kind = p->m == 1   ? PTAC_INT8_M1
                  : p->m < 8  ? PTAC_INT8_M2
                  : p->m < 32 ? PTAC_INT8_M8
                              : PTAC_INT8_M32;
    shape->work = p->n * p->k;
    return PTAC_TAKE;
}

PTAC_SHAPES_OF(INT8_LINEAR, classify, 0, true, "m1", "m2_7", "m8_31", "m32_up")
