/*
 * reduce_tpl.h - rows reduced by indices, a vector of floats at a time.
 *
 * Included behind indexing_tpl.h, whose chunks of rows it takes.
 */
#include "core/scratch.h"
#include "ops/indexing/reduce.h"

INLINE vec reduced(ptac_reducing_how how, bool has_later, vec y, vec x)
{
    const vec stays = has_later ? y : x; /* v_max and v_min give the other's NaN */
    vec best;

    if (how <= PTAC_REDUCE_MEAN)
        return v_add(y, x);
    if (how == PTAC_REDUCE_LARGEST)
        best = has_later ? v_max(y, x) : v_max(x, y);
    else
        best = has_later ? v_min(y, x) : v_min(x, y);
    return v_pick(v_compare(stays, stays, _CMP_UNORD_Q), stays, best);
}

/* The term x of a row; rows have a constant how, often a constant width. */
INLINE void reduce_row(const ptac_reducing *job, ptac_reducing_how how, int64_t width,
                       bool is_first, float *y, const float *x)
{
    const vec begins = v_set(ptac_reducing_first(how));

    if (is_first)
        FOR_LANES(c, n, 0, width,
                  store_f32(y + c, reduced(how, true, begins, load_f32(x + c, n)), n));
    else if (job->r->has_later)
        FOR_LANES(c, n, 0, width,
                  store_f32(y + c,
                            reduced(how, true, load_f32(y + c, n), load_f32(x + c, n)),
                            n));
    else
        FOR_LANES(c, n, 0, width,
                  store_f32(y + c,
                            reduced(how, false, load_f32(y + c, n), load_f32(x + c, n)),
                            n));
}

INLINE void divide_row(const ptac_reducing *job, const ptac_terms *terms, float *y)
{
    const vec count = v_set(ptac_reducing_count(job->r, terms));

    FOR_LANES(c, n, 0, job->r->rows.width,
              store_f32(y + c, v_div(load_f32(y + c, n), count), n));
}

/* n terms from the first on; rows outside of [begin, end) are others'. */
INLINE void reduce_chunk(const ptac_reducing *job, ptac_reducing_how how,
                         const int64_t *rows, int64_t first, int n, int64_t begin,
                         int64_t end)
{
    const ptac_adding *adding = &job->adding;
    const ptac_rows *p = &job->r->rows;
    const bool is_far = p->n_rows * adding->stride > NEAR_FLOATS && p->width >= LANES;
    const int64_t stride = adding->stride, width = p->width;
    const float *x = adding->x + first * p->x_stride;

    for (int i = 0; i < n; i++, x += p->x_stride) {
        const int64_t row = rows[i];
        ptac_terms *terms = job->terms ? &job->terms[row] : NULL;
        float *y = adding->y + row * stride;
        bool is_first;

        if (is_far && i + AHEAD < n)
            fetch(adding->y + rows[i + AHEAD] * stride, width);
        if (row < begin || row >= end)
            continue;
        is_first = terms && terms->n_done++ == 0 && !job->r->has_self;
        if (width == 4 * LANES)
            reduce_row(job, how, 4 * LANES, is_first, y, x);
        else
            reduce_row(job, how, width, is_first, y, x);
        if (how == PTAC_REDUCE_MEAN && terms->n_done == terms->n)
            divide_row(job, terms, y);
    }
}

/* The same where rows are of one float or two, and all of them this thread's. */
INLINE void reduce_few(const ptac_reducing *job, ptac_reducing_how how, bool has_terms,
                       int width, const int64_t *rows, int64_t first, int n)
{
    const int64_t stride = job->adding.stride, x_stride = job->r->rows.x_stride;
    const float *x = job->adding.x + first * x_stride;
    const float begins = ptac_reducing_first(how);
    const bool has_self = job->r->has_self;

    for (int i = 0; i < n; i++, x += x_stride) {
        ptac_terms *terms = has_terms ? job->terms + rows[i] : NULL;
        const bool is_first = has_terms && (terms->n_done++ == 0) & !has_self;
        float *y = job->adding.y + rows[i] * stride;

        for (int c = 0; c < width; c++)
            y[c] = ptac_reduced(
                how, false,
                has_terms ? ptac_reducing_pick(is_first, begins, y[c]) : y[c], x[c]);
        if (how == PTAC_REDUCE_MEAN && terms->n_done == terms->n)
            for (int c = 0; c < width; c++)
                y[c] /= ptac_reducing_count(job->r, terms);
    }
}

/* Of a chunk, by loops without conditions. */
INLINE void reduce_chunk_of_few(const ptac_reducing *job, int width,
                                const int64_t *rows, int64_t first, int n)
{
    const ptac_reducing_how how = job->r->how;
    const bool has_terms = job->terms;

    if (how == PTAC_REDUCE_SUM && !has_terms)
        reduce_few(job, PTAC_REDUCE_SUM, false, width, rows, first, n);
    else if (how == PTAC_REDUCE_SUM)
        reduce_few(job, PTAC_REDUCE_SUM, true, width, rows, first, n);
    else if (how == PTAC_REDUCE_MEAN)
        reduce_few(job, PTAC_REDUCE_MEAN, true, width, rows, first, n);
    else if (how == PTAC_REDUCE_LARGEST && !has_terms)
        reduce_few(job, PTAC_REDUCE_LARGEST, false, width, rows, first, n);
    else if (how == PTAC_REDUCE_LARGEST)
        reduce_few(job, PTAC_REDUCE_LARGEST, true, width, rows, first, n);
    else
        reduce_few(job, PTAC_REDUCE_SMALLEST, has_terms, width, rows, first, n);
}

/* Parts [begin, end) of the table's rows. */
TARGET static void reduce_parts(int64_t begin, int64_t end, void *context)
{
    const ptac_reducing *job = context;
    const ptac_rows *p = &job->r->rows;
    const int64_t first = ptac_adding_begin(&job->adding, begin);
    const int64_t last = ptac_adding_begin(&job->adding, end);
    const bool are_few = p->width <= (job->r->how <= PTAC_REDUCE_MEAN ? 2 : 1) &&
                         job->adding.n_parts == 1 && !job->r->has_later;
    int64_t rows[CHUNK];

    ptac_reducing_start(job, first, last);
    for (int64_t i = 0; i < p->n; i += CHUNK) {
        const int n = (int)ptac_least(CHUNK, p->n - i);
        const bool are_rows = chunk_of_rows(p, job->adding.index, i, n, rows);

        if (are_few && are_rows && p->width == 1)
            reduce_chunk_of_few(job, 1, rows, i, n);
        else if (are_few && are_rows)
            reduce_chunk_of_few(job, 2, rows, i, n);
        else if (job->r->how == PTAC_REDUCE_SUM)
            reduce_chunk(job, PTAC_REDUCE_SUM, rows, i, n, first, last);
        else if (job->r->how == PTAC_REDUCE_MEAN)
            reduce_chunk(job, PTAC_REDUCE_MEAN, rows, i, n, first, last);
        else if (job->r->how == PTAC_REDUCE_LARGEST)
            reduce_chunk(job, PTAC_REDUCE_LARGEST, rows, i, n, first, last);
        else
            reduce_chunk(job, PTAC_REDUCE_SMALLEST, rows, i, n, first, last);
    }
}

static ptac_status run_reduce(const ptac_call *call)
{
    ptac_adding adding;
    ptac_reducing job;
    ptac_status status;

    ptac_adding_of(call, &adding);
    if (!all_have_rows(&adding))
        return PTAC_UNSUITED;
    status = ptac_reducing_of(call, &job);
    if (status == PTAC_OK)
        ptac_parallel_for(0, job.adding.n_parts, 1, reduce_parts, &job);
    ptac_scratch_give(job.terms);
    return status;
}

/* Parts [begin, end) of the table's rows. */
TARGET static void scatter_parts(int64_t begin, int64_t end, void *context)
{
    const ptac_reducing *job = context;
    const ptac_adding *adding = &job->adding;
    const ptac_rows *p = adding->p;
    const int64_t first = ptac_adding_begin(adding, begin);
    const int64_t last = ptac_adding_begin(adding, end);
    const vec value = v_set(job->r->value);
    int64_t rows[CHUNK];

    ptac_adding_start(adding, first, last);
    for (int64_t i = 0; i < p->n; i += CHUNK) {
        const int n_rows = (int)ptac_least(CHUNK, p->n - i);

        chunk_of_rows(p, adding->index, i, n_rows, rows);
        for (int k = 0; k < n_rows; k++)
            if (rows[k] >= first && rows[k] < last)
                FOR_LANES(
                    c, n, 0, p->width,
                    store_f32(adding->y + rows[k] * adding->stride + c, value, n));
    }
}

static ptac_status run_scatter(const ptac_call *call)
{
    ptac_reducing job = {.r = call->params};

    ptac_adding_of(call, &job.adding);
    if (!all_have_rows(&job.adding))
        return PTAC_UNSUITED;
    ptac_parallel_for(0, job.adding.n_parts, 1, scatter_parts, &job);
    return PTAC_OK;
}

PTAC_ROW(SCATTER_REDUCE, ISA, PTAC_EXACT, NEEDS, ptac_reduce_accepts, run_reduce)
PTAC_ROW(SCATTER, ISA, PTAC_EXACT, NEEDS, ptac_reduce_accepts, run_scatter)
