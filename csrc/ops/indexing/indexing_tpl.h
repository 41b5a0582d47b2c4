/*
 * indexing_tpl.h - rows by indices, a vector of floats at a time.
 *
 * Included behind typed_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 *
 * Indices are read and checked a chunk at a time, and become offsets of rows. Rows that
 * are added to, of a table that no cache holds, are fetched ahead of their turn. Copies
 * do without: the CPU has many of them under way as it is.
 */
#include "ops/indexing/columns.h"

enum {
    CHUNK = 256,
    LINE = 64 / sizeof(float), /* floats of a cache line */
    AHEAD = 8,                 /* rows between a fetch and its use */
    FETCHED_LINES = 4,         /* of a row; the CPU guesses what follows */
    NEAR_FLOATS = 1 << 18,     /* in a table that caches hold */
};

/* n indices from the first on as rows; whether the table has all of them. */
INLINE bool find_rows(const ptac_rows *p, const void *index, int64_t first, int n,
                      bool has_32_bits, int64_t *restrict rows)
{
    const int32_t *restrict narrow = (const int32_t *)index + first;
    const int64_t *restrict wide = (const int64_t *)index + first;
    const uint64_t last = (uint64_t)p->n_rows - 1;
    const int64_t wrap = p->wraps ? p->n_rows : 0;
    uint64_t bad = 0; /* its sign is that of a row below 0 or behind the last */

    for (int i = 0; i < n; i++) {
        const int64_t given = has_32_bits ? narrow[i] : wide[i];
        const int64_t row = given + (given < 0 ? wrap : 0);

        bad |= (uint64_t)row | (last - (uint64_t)row);
        rows[i] = row;
    }
    return !(bad >> 63);
}

TARGET static bool chunk_of_rows(const ptac_rows *p, const void *index, int64_t first,
                                 int n, int64_t *rows)
{
    if (p->has_32_bits)
        return find_rows(p, index, first, n, true, rows);
    if (n == CHUNK)
        return find_rows(p, index, first, CHUNK, false, rows);
    return find_rows(p, index, first, n, false, rows);
}

INLINE void fetch(const float *row, int64_t width)
{
    for (int64_t i = 0; i < width && i < FETCHED_LINES * LINE; i += LINE)
        __builtin_prefetch(row + i);
    __builtin_prefetch(row + width - 1);
}

typedef struct selecting {
    const ptac_rows *p;
    const float *table;
    const void *index;
    float *y;
    int has_bad; /* an index that the table does not have */
} selecting;

/* Rows below a vector: each store but the last ones runs over into the next row. */
INLINE void copy_narrow(const float *table, int64_t stride, const int64_t *rows, int n,
                        int width, float *y)
{
    const int exact = n - LANES / width - 1;

    for (int i = 0; i < n; i++, y += width) {
        const vec row = load_f32(table + rows[i] * stride, width);

        if (i < exact)
            v_store(y, row);
        else
            store_f32(y, row, width);
    }
}

INLINE void copy_wide(const float *table, int64_t stride, const int64_t *rows, int n,
                      int64_t width, float *y)
{
    const int64_t last = width - LANES;

    for (int i = 0; i < n; i++, y += width) {
        const float *row = table + rows[i] * stride;

        for (int64_t c = 0; c < last; c += LANES)
            v_store(y + c, v_load(row + c));
        v_store(y + last, v_load(row + last));
    }
}

TARGET static void copy_rows(const selecting *job, const int64_t *rows, int n, float *y)
{
    const float *table = job->table;
    const int64_t stride = job->p->stride, width = job->p->width;

    if (width == 1)
        for (int i = 0; i < n; i++)
            y[i] = table[rows[i] * stride];
    else if (width < LANES)
        copy_narrow(table, stride, rows, n, (int)width, y);
    else if (width == LANES)
        copy_wide(table, stride, rows, n, LANES, y);
    else if (width == 2 * LANES)
        copy_wide(table, stride, rows, n, 2 * LANES, y);
    else if (width == 4 * LANES)
        copy_wide(table, stride, rows, n, 4 * LANES, y);
    else
        copy_wide(table, stride, rows, n, width, y);
}

/* Rows [begin, end) of y. */
static void select_range(int64_t begin, int64_t end, void *context)
{
    selecting *job = context;
    int64_t rows[CHUNK];

    for (int64_t i = begin; i < end; i += CHUNK) {
        const int n = (int)ptac_least(CHUNK, end - i);

        if (!chunk_of_rows(job->p, job->index, i, n, rows)) {
            __atomic_store_n(&job->has_bad, 1, __ATOMIC_RELAXED);
            return;
        }
        copy_rows(job, rows, n, job->y + i * job->p->width);
    }
}

static ptac_status run_select(const ptac_call *call)
{
    const ptac_rows *p = call->params;
    selecting job = {
        .p = p,
        .table = call->inputs[PTAC_ROWS_TABLE].data,
        .index = call->inputs[PTAC_ROWS_INDEX].data,
        .y = call->outputs[0].data,
    };

    if (p->of_columns)
        return ptac_columns_pick(call);
    ptac_share_indices(p, select_range, &job);
    return job.has_bad ? PTAC_UNSUITED : PTAC_OK;
}

/* Additions of a chunk that fall to one thread: where to, and the row of x. */
typedef struct additions {
    int n;
    int64_t to[CHUNK], from[CHUNK];
    float scale[CHUNK]; /* where the job has scales */
} additions;

/* Those of n indices from the first on whose rows are among [begin, end). */
TARGET static void collect(const ptac_adding *job, int64_t first, int n, int64_t begin,
                           int64_t end, additions *found)
{
    const int64_t padding = job->p->padding;
    int64_t rows[CHUNK];
    int kept = 0;

    chunk_of_rows(job->p, job->index, first, n, rows);
    for (int i = 0; i < n; i++) {
        const int64_t row = rows[i];

        found->to[kept] = row;
        found->from[kept] = first + i;
        kept += (row >= begin) & (row < end) & (row != padding);
    }
    found->n = kept;
    for (int i = 0; i < kept; i++) {
        const int64_t from = ptac_adding_from(job, found->from[i]);

        found->to[i] *= job->stride;
        found->from[i] = from * job->p->x_stride;
        if (job->scales)
            found->scale[i] = job->scales[from];
    }
}

/*
 * All of them, where the table is one part, nothing is padding and x in order. False:
 * not all are rows any more.
 */
TARGET static bool take_all(const ptac_adding *job, int64_t first, int n,
                            additions *found)
{
    const int64_t stride = job->stride, x_stride = job->p->x_stride;

    if (!chunk_of_rows(job->p, job->index, first, n, found->to))
        return false;
    for (int i = 0; i < n; i++) {
        found->to[i] *= stride;
        found->from[i] = (first + i) * x_stride;
    }
    found->n = n;
    return true;
}

/* The same of rows of one float, one behind the other, and added. */
TARGET static bool add_singles(const ptac_adding *job, int64_t first, int n)
{
    const float *x = job->x + first;
    float *y = job->y;
    int64_t rows[CHUNK];

    if (!chunk_of_rows(job->p, job->index, first, n, rows))
        return false;
    for (int i = 0; i < n; i++)
        y[rows[i]] += x[i];
    return true;
}

INLINE void add_wide(const ptac_adding *job, const additions *found, int64_t width,
                     bool is_far)
{
    for (int i = 0; i < found->n; i++) {
        const float *x = job->x + found->from[i];
        float *y = job->y + found->to[i];

        if (is_far && i + AHEAD < found->n) {
            fetch(job->y + found->to[i + AHEAD], width);
            fetch(job->x + found->from[i + AHEAD], width);
        }
        FOR_LANES(c, n, 0, width,
                  store_f32(y + c, v_add(load_f32(y + c, n), load_f32(x + c, n)), n));
    }
}

INLINE void add_scaled(const ptac_adding *job, const additions *found, int64_t width,
                       bool is_far)
{
    for (int i = 0; i < found->n; i++) {
        const float *x = job->x + found->from[i];
        float *y = job->y + found->to[i];
        const vec scale = v_set(found->scale[i]);

        if (is_far && i + AHEAD < found->n)
            fetch(job->y + found->to[i + AHEAD], width);
        FOR_LANES(
            c, n, 0, width,
            store_f32(y + c, v_fma(scale, load_f32(x + c, n), load_f32(y + c, n)), n));
    }
}

TARGET static void add_rows(const ptac_adding *job, const additions *found)
{
    const int64_t width = job->p->width;
    const bool is_far = job->p->n_rows * job->stride > NEAR_FLOATS;

    if (job->scales)
        add_scaled(job, found, width, is_far);
    else if (width == 1)
        for (int i = 0; i < found->n; i++)
            job->y[found->to[i]] += job->x[found->from[i]];
    else if (width == LANES)
        add_wide(job, found, LANES, is_far);
    else if (width == 2 * LANES)
        add_wide(job, found, 2 * LANES, is_far);
    else if (width == 4 * LANES)
        add_wide(job, found, 4 * LANES, is_far);
    else
        add_wide(job, found, width, is_far);
}

/* Parts [begin, end) of the table's rows. */
static void add_parts(int64_t begin, int64_t end, void *context)
{
    const ptac_adding *job = context;
    const int64_t first = ptac_adding_begin(job, begin);
    const int64_t last = ptac_adding_begin(job, end);
    const ptac_rows *p = job->p;
    const bool takes_all = job->n_parts == 1 && p->padding < 0 && !job->source;
    const bool is_single = p->width == 1 && job->stride == 1 && p->x_stride == 1;
    additions found;

    ptac_adding_start(job, first, last);
    for (int64_t i = 0; i < p->n; i += CHUNK) {
        const int n = (int)ptac_least(CHUNK, p->n - i);

        if (takes_all && is_single && add_singles(job, i, n))
            continue;
        if (!takes_all || !take_all(job, i, n, &found))
            collect(job, i, n, first, last, &found);
        add_rows(job, &found);
    }
}

static bool all_have_rows(const ptac_adding *job)
{
    int64_t rows[CHUNK];
    bool has_all = true;

    for (int64_t i = 0; i < job->p->n && has_all; i += CHUNK)
        has_all = chunk_of_rows(job->p, job->index, i,
                                (int)ptac_least(CHUNK, job->p->n - i), rows);
    return has_all;
}

static ptac_status run_add(const ptac_call *call)
{
    ptac_adding job;

    if (((const ptac_rows *)call->params)->of_columns)
        return ptac_columns_add(call);
    if (!ptac_adding_of(call, &job) || !all_have_rows(&job))
        return PTAC_UNSUITED;
    ptac_parallel_for(0, job.n_parts, 1, add_parts, &job);
    return PTAC_OK;
}

PTAC_ROW(INDEX_SELECT, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_select)
PTAC_ROW(INDEX, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_select)
PTAC_ROW(GATHER, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_select)
PTAC_ROW(INDEX_ADD, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_add)
PTAC_ROW(SCATTER_ADD, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_add)
PTAC_ROW(INDEX_PUT, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_add)
PTAC_ROW(EMBEDDING_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_add)
PTAC_ROW(EMBEDDING_BAG_BACKWARD, ISA, PTAC_EXACT, NEEDS, ptac_rows_accepts, run_add)
