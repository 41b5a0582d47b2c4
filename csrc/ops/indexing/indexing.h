/*
 * indexing.h - rows of a table found by indices, and rows added to a table. Level
 * exact.
 *
 *   index_select, index, gather
 *       inputs: table, index. outputs: y [n, width], dense; y[i] = table[index[i]]
 *   index_add, scatter_add, index_put
 *       inputs: table, index, x. outputs: y as the table, or the table itself;
 *       y = table, and then y[index[i]] += x[i] for i = 0, 1 ...
 *   embedding_backward
 *       inputs: x, index. outputs: y [n_rows, width], dense; the same from y = 0
 *   embedding_bag_backward
 *       inputs: x, index, source, order, scales. outputs: likewise, where source and
 *       order name rows of x: y[index[i]] += x[source[order[i]]]; where there are
 *       scales, one for each row of x, times that row's and rounded once
 *
 * Numbers are of float32, indices of int64 or int32 and dense. Each element's additions
 * round in the order of i, as stock's do: results have its bits whatever the threads.
 * An index that the table does not have gives PTAC_UNSUITED before the first write to a
 * table: stock knows what to say of it. Where another thread writes to indices
 * meanwhile, those that are no rows any more are left out.
 */
#ifndef PTAC_OPS_INDEXING_INDEXING_H
#define PTAC_OPS_INDEXING_INDEXING_H

#include "core/host.h"
#include "core/kernel.h"

enum {
    PTAC_ROWS_TABLE = 0, /* of a gradient: x */
    PTAC_ROWS_INDEX = 1,
    PTAC_ROWS_X = 2,     /* of embedding_bag_backward: source */
    PTAC_ROWS_ORDER = 3, /* of int64 */
    PTAC_ROWS_SCALES = 4,
    PTAC_NO_ROW = -1,
};

typedef struct ptac_rows {
    int64_t n_rows;   /* of the table */
    int64_t width;    /* floats a row */
    int64_t stride;   /* floats from a row of the table to the next, */
    int64_t x_stride; /* and of x, */
    int64_t x_rows;   /* which has so many where source names them */
    int64_t n;        /* indices */
    int64_t padding;  /* of a gradient: rows of this index are left out */
    bool has_32_bits; /* indices are of int32 */
    bool wraps;       /* negative indices count from the table's end */
    bool of_columns;  /* indices are places in each row, see columns.h */
} ptac_rows;

/* What rows that add up work on. */
typedef struct ptac_adding {
    const ptac_rows *p;
    const void *index, *source; /* source: NULL where x[i] goes with index[i] */
    const int64_t *order;
    const float *x;
    const float *scales; /* or NULL */
    const float *before; /* NULL: y begins as zeros; y: it is as it has to be */
    float *y;
    int64_t stride; /* of y */
    int n_parts;    /* of the table's rows, for threads to share */
} ptac_adding;

/* Index i as it is; and as a row of the table, or PTAC_NO_ROW. */
static inline int64_t ptac_rows_index(const ptac_rows *p, const void *index, int64_t i)
{
    return p->has_32_bits ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

static inline int64_t ptac_rows_row(const ptac_rows *p, const void *index, int64_t i)
{
    int64_t row = ptac_rows_index(p, index, i);

    if (p->wraps && row < 0)
        row += p->n_rows;
    return row < 0 || row >= p->n_rows ? PTAC_NO_ROW : row;
}

/* The row of x that goes with index i; the first where source names none any more. */
static inline int64_t ptac_adding_from(const ptac_adding *job, int64_t i)
{
    const int64_t row =
        job->source ? ptac_rows_index(job->p, job->source, job->order[i]) : i;

    return !job->source || (uint64_t)row < (uint64_t)job->p->x_rows ? row : 0;
}

/*
 * The job of an adding call. Its parts are 1 where threads are not worth it. False:
 * source and order name what is not there.
 */
bool ptac_adding_of(const ptac_call *call, ptac_adding *job);

/* Rows of the table that belong to a part begin here; they end where the next do. */
static inline int64_t ptac_adding_begin(const ptac_adding *job, int64_t part)
{
    return job->p->n_rows / job->n_parts * part +
           ptac_least(part, job->p->n_rows % job->n_parts);
}

/* Have rows [begin, end) of y be what additions start from. */
void ptac_adding_start(const ptac_adding *job, int64_t begin, int64_t end);

/* What every row accepts. */
ptac_reason ptac_rows_accepts(const ptac_call *call);

/* Threads share n rows of a width. */
static inline void ptac_share_indices(const ptac_rows *p, ptac_range_fn body, void *job)
{
    ptac_parallel_for(0, p->n, 16384 / p->width + 1, body, job);
}

#endif
