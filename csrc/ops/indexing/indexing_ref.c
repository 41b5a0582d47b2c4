/*
 * indexing_ref.c - rows by indices by definition, their shape kinds, and what all rows
 * share.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/indexing/columns.h"

#include <math.h>
#include <string.h>

/* Stock's time for an index counts in narrow rows, and that of memory in tables. */
enum {
    NARROW_BELOW = 16,
    BROAD_FROM = 128,
    NEAR_FLOATS = 1 << 18,
    FAR = 4, /* added to the kind of a table that is not near */
    COLUMNS = 8,
};

static int kind_of(int64_t width)
{
    return width == 1 ? 0 : width < NARROW_BELOW ? 1 : width < BROAD_FROM ? 2 : 3;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_rows *p = call->params;

    shape->kind = kind_of(p->width) + (p->n_rows * p->width > NEAR_FLOATS ? FAR : 0);
    shape->work = p->n * p->width;
    return PTAC_TAKE;
}

/* Index and index_put also pick columns, the same number of each row. */
static ptac_reason classify_all(const ptac_call *call, ptac_shape *shape)
{
    const ptac_rows *p = call->params;

    if (!p->of_columns)
        return classify(call, shape);
    shape->kind = p->n_rows == 1 ? COLUMNS : COLUMNS + 1;
    shape->work = p->n_rows * p->n;
    return PTAC_TAKE;
}

#define SHAPES_OF_ALL(id)                                                              \
    PTAC_SHAPES(id, classify_all, "single", "narrow", "wide", "broad", "single_far",   \
                "narrow_far", "wide_far", "broad_far", "elements", "columns")
#define SHAPES(id)                                                                     \
    PTAC_SHAPES(id, classify, "single", "narrow", "wide", "broad", "single_far",       \
                "narrow_far", "wide_far", "broad_far")
SHAPES(INDEX_SELECT)
SHAPES_OF_ALL(INDEX)
SHAPES(GATHER)
SHAPES(INDEX_ADD)
SHAPES(SCATTER_ADD)
SHAPES_OF_ALL(INDEX_PUT)
SHAPES(EMBEDDING_BACKWARD)
SHAPES(EMBEDDING_BAG_BACKWARD)

ptac_reason ptac_rows_accepts(const ptac_call *call)
{
    return call->inputs[PTAC_ROWS_TABLE].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static bool has_sources(const ptac_adding *job)
{
    const ptac_rows *p = job->p;
    bool has_all = true;

    for (int64_t i = 0; i < p->n; i++)
        has_all &= (uint64_t)ptac_rows_index(p, job->source, i) < (uint64_t)p->x_rows &&
                   (uint64_t)job->order[i] < (uint64_t)p->n;
    return has_all;
}

/*
 * A thread looks at all indices for those that fall to it, which costs as much as to
 * add a few floats.
 */
static int parts_of(const ptac_rows *p, int64_t floats, int n_threads)
{
    enum { NARROW = 4, LEAST_FLOATS = 1 << 16 };

    return p->width < NARROW || floats < LEAST_FLOATS
               ? 1
               : (int)ptac_least(n_threads, p->n_rows);
}

bool ptac_adding_of(const ptac_call *call, ptac_adding *job)
{
    const ptac_rows *p = call->params;
    const bool is_gradient = call->op == PTAC_OP_EMBEDDING_BACKWARD ||
                             call->op == PTAC_OP_EMBEDDING_BAG_BACKWARD;
    const int64_t floats = (is_gradient ? p->n_rows + p->n : p->n) * p->width;

    *job = (ptac_adding){
        .p = p,
        .index = call->inputs[PTAC_ROWS_INDEX].data,
        .y = call->outputs[0].data,
        .stride = p->width,
        .n_parts = parts_of(p, floats, call->n_threads),
    };
    if (is_gradient) {
        job->x = call->inputs[PTAC_ROWS_TABLE].data;
        if (call->op == PTAC_OP_EMBEDDING_BACKWARD)
            return true;
        job->source = call->inputs[PTAC_ROWS_X].data;
        job->order = call->inputs[PTAC_ROWS_ORDER].data;
        if (call->n_inputs > PTAC_ROWS_SCALES)
            job->scales = call->inputs[PTAC_ROWS_SCALES].data;
        return has_sources(job);
    }
    job->x = call->inputs[PTAC_ROWS_X].data;
    job->before = call->inputs[PTAC_ROWS_TABLE].data;
    if (job->before == job->y)
        job->stride = p->stride;
    return true;
}

void ptac_adding_start(const ptac_adding *job, int64_t begin, int64_t end)
{
    const int64_t width = job->p->width, stride = job->p->stride;
    float *y = job->y + begin * width;

    if (!job->before)
        memset(y, 0, (size_t)((end - begin) * width) * sizeof *y);
    else if (job->before != job->y && stride == width)
        memcpy(y, job->before + begin * width,
               (size_t)((end - begin) * width) * sizeof *y);
    else if (job->before != job->y)
        for (int64_t i = begin; i < end; i++, y += width)
            memcpy(y, job->before + i * stride, (size_t)width * sizeof *y);
}

static bool all_have_rows(const ptac_rows *p, const void *index)
{
    for (int64_t i = 0; i < p->n; i++)
        if (ptac_rows_row(p, index, i) == PTAC_NO_ROW)
            return false;
    return true;
}

typedef struct selecting {
    const ptac_call *call;
    int has_bad; /* an index that the table does not have */
} selecting;

/* Rows [begin, end) of y. */
static void select_rows(int64_t begin, int64_t end, void *context)
{
    selecting *job = context;
    const ptac_call *call = job->call;
    const ptac_rows *p = call->params;
    const float *table = call->inputs[PTAC_ROWS_TABLE].data;
    float *y = call->outputs[0].data;

    for (int64_t i = begin; i < end; i++) {
        const int64_t row = ptac_rows_row(p, call->inputs[PTAC_ROWS_INDEX].data, i);

        if (row == PTAC_NO_ROW) {
            __atomic_store_n(&job->has_bad, 1, __ATOMIC_RELAXED);
            return;
        }
        memcpy(y + i * p->width, table + row * p->stride, (size_t)p->width * sizeof *y);
    }
}

static ptac_status run_select(const ptac_call *call)
{
    selecting job = {.call = call};

    if (((const ptac_rows *)call->params)->of_columns)
        return ptac_columns_pick(call);
    ptac_share_indices(call->params, select_rows, &job);
    return job.has_bad ? PTAC_UNSUITED : PTAC_OK;
}

/* Parts [begin, end) of the table's rows. */
static void add_parts(int64_t begin, int64_t end, void *context)
{
    const ptac_adding *job = context;
    const ptac_rows *p = job->p;
    const int64_t first = ptac_adding_begin(job, begin);
    const int64_t last = ptac_adding_begin(job, end);

    ptac_adding_start(job, first, last);
    for (int64_t i = 0; i < p->n; i++) {
        const int64_t row = ptac_rows_row(p, job->index, i);
        const int64_t from = ptac_adding_from(job, i);
        const float *x = job->x + from * p->x_stride;
        float *y = job->y + row * job->stride;

        if (row < first || row >= last || row == p->padding)
            continue;
        for (int64_t c = 0; c < p->width; c++)
            y[c] = job->scales ? fmaf(job->scales[from], x[c], y[c]) : y[c] + x[c];
    }
}

static ptac_status run_add(const ptac_call *call)
{
    ptac_adding job;

    if (((const ptac_rows *)call->params)->of_columns)
        return ptac_columns_add(call);
    if (!ptac_adding_of(call, &job) || !all_have_rows(job.p, job.index))
        return PTAC_UNSUITED;
    ptac_parallel_for(0, job.n_parts, 1, add_parts, &job);
    return PTAC_OK;
}

PTAC_ROW(INDEX_SELECT, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_select)
PTAC_ROW(INDEX, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_select)
PTAC_ROW(GATHER, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_select)
PTAC_ROW(INDEX_ADD, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_add)
PTAC_ROW(SCATTER_ADD, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_add)
PTAC_ROW(INDEX_PUT, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_add)
PTAC_ROW(EMBEDDING_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_add)
PTAC_ROW(EMBEDDING_BAG_BACKWARD, "scalar", PTAC_EXACT, 0, ptac_rows_accepts, run_add)
