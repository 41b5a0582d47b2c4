/*
 * reduce_ref.c - reductions of rows by definition, their shape kinds, and what all rows
 * share.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/indexing/reduce.h"

#include "core/scratch.h"

/* As times go: stock sorts the indices of wide rows, and few floats fill no vector. */
enum {
    FEW_BELOW = 4,
    NARROW_BELOW = 16,
    BROAD_FROM = 128,
    MOST_COUNTED = 1 << 24, /* integers that floats have */
    KINDS = 4,
};

static int kind_of(int64_t width)
{
    return width < FEW_BELOW      ? 0
           : width < NARROW_BELOW ? 1
           : width < BROAD_FROM   ? 2
                                  : 3;
}

static ptac_reason classify_scatter(const ptac_call *call, ptac_shape *shape)
{
    const ptac_rows *p = call->params;

    shape->kind = kind_of(p->width);
    shape->work = p->n * p->width;
    return PTAC_TAKE;
}

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_reduction *r = call->params;

    classify_scatter(call, shape);
    shape->kind += r->how == PTAC_REDUCE_SUM    ? 0
                   : r->how == PTAC_REDUCE_MEAN ? KINDS
                                                : 2 * KINDS;
    return PTAC_TAKE;
}

PTAC_SHAPES(SCATTER_REDUCE, classify, "sum_few", "sum_narrow", "sum_wide", "sum_broad",
            "mean_few", "mean_narrow", "mean_wide", "mean_broad", "most_few",
            "most_narrow", "most_wide", "most_broad")
PTAC_SHAPES(SCATTER, classify_scatter, "few", "narrow", "wide", "broad")

ptac_reason ptac_reduce_accepts(const ptac_call *call)
{
    const ptac_reduction *r = call->params;
    const ptac_reason why = ptac_rows_accepts(call);

    if (why || call->op == PTAC_OP_SCATTER)
        return why;
    return r->rows.n < MOST_COUNTED ? PTAC_TAKE : PTAC_SHAPE;
}

ptac_status ptac_reducing_of(const ptac_call *call, ptac_reducing *job)
{
    const ptac_reduction *r = call->params;

    *job = (ptac_reducing){.r = r};
    ptac_adding_of(call, &job->adding);
    if (r->has_self && r->how != PTAC_REDUCE_MEAN)
        return PTAC_OK;
    job->terms = ptac_scratch_take((size_t)r->rows.n_rows * sizeof *job->terms);
    return job->terms ? PTAC_OK : PTAC_NO_MEMORY;
}

/* By indices, not by rows: a table may have many more. */
static void count_terms(const ptac_reducing *job, int64_t begin, int64_t end)
{
    const ptac_rows *p = &job->r->rows;

    for (int64_t i = 0; i < p->n; i++) {
        const int64_t row = ptac_rows_row(p, job->adding.index, i);

        if (row >= begin && row < end)
            job->terms[row] = (ptac_terms){0, 0};
    }
    for (int64_t i = 0; i < p->n && job->r->how == PTAC_REDUCE_MEAN; i++) {
        const int64_t row = ptac_rows_row(p, job->adding.index, i);

        if (row >= begin && row < end)
            job->terms[row].n++;
    }
}

void ptac_reducing_start(const ptac_reducing *job, int64_t begin, int64_t end)
{
    ptac_adding_start(&job->adding, begin, end);
    if (job->terms)
        count_terms(job, begin, end);
}

static bool all_have_rows(const ptac_rows *p, const void *index)
{
    for (int64_t i = 0; i < p->n; i++)
        if (ptac_rows_row(p, index, i) == PTAC_NO_ROW)
            return false;
    return true;
}

/* A term of a row, and the division behind a mean's last one. */
static void reduce_row(const ptac_reducing *job, int64_t row, const float *x)
{
    const ptac_reduction *r = job->r;
    ptac_terms *terms = job->terms ? &job->terms[row] : NULL;
    float *y = job->adding.y + row * job->adding.stride;
    const bool is_first = terms && terms->n_done++ == 0 && !r->has_self;

    for (int64_t c = 0; c < r->rows.width; c++)
        y[c] = ptac_reduced(r->how, r->has_later,
                            is_first ? ptac_reducing_first(r->how) : y[c], x[c]);
    if (r->how != PTAC_REDUCE_MEAN || terms->n_done != terms->n)
        return;
    for (int64_t c = 0; c < r->rows.width; c++)
        y[c] /= ptac_reducing_count(r, terms);
}

/* Parts [begin, end) of the table's rows. */
static void reduce_parts(int64_t begin, int64_t end, void *context)
{
    const ptac_reducing *job = context;
    const ptac_reduction *r = job->r;
    const ptac_adding *adding = &job->adding;
    const int64_t first = ptac_adding_begin(adding, begin);
    const int64_t last = ptac_adding_begin(adding, end);

    ptac_reducing_start(job, first, last);
    for (int64_t i = 0; i < r->rows.n; i++) {
        const int64_t row = ptac_rows_row(&r->rows, adding->index, i);

        if (row >= first && row < last)
            reduce_row(job, row, adding->x + i * r->rows.x_stride);
    }
}

static ptac_status run_reduce(const ptac_call *call)
{
    ptac_reducing job;
    ptac_status status;

    if (!all_have_rows(call->params, call->inputs[PTAC_ROWS_INDEX].data))
        return PTAC_UNSUITED;
    status = ptac_reducing_of(call, &job);
    if (status == PTAC_OK)
        ptac_parallel_for(0, job.adding.n_parts, 1, reduce_parts, &job);
    ptac_scratch_give(job.terms);
    return status;
}

static ptac_status run_scatter(const ptac_call *call)
{
    const ptac_reduction *r = call->params;
    ptac_adding job;

    ptac_adding_of(call, &job);
    if (!all_have_rows(&r->rows, job.index))
        return PTAC_UNSUITED;
    ptac_adding_start(&job, 0, r->rows.n_rows);
    for (int64_t i = 0; i < r->rows.n; i++) {
        const int64_t row = ptac_rows_row(&r->rows, job.index, i);

        for (int64_t c = 0; c < r->rows.width && row != PTAC_NO_ROW; c++)
            job.y[row * job.stride + c] = r->value;
    }
    return PTAC_OK;
}

PTAC_ROW(SCATTER_REDUCE, "scalar", PTAC_EXACT, 0, ptac_reduce_accepts, run_reduce)
PTAC_ROW(SCATTER, "scalar", PTAC_EXACT, 0, ptac_reduce_accepts, run_scatter)
