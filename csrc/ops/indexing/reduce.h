/*
 * reduce.h - rows of a table reduced by the rows that indices add to them. Level exact.
 *
 *   scatter_reduce  inputs: table, index, x. outputs: y as the table, or the table
 *                   itself; y = table, and then y[index[i]] becomes the sum, the mean,
 *                   the largest or the smallest of itself, where it counts, and of all
 *                   x[i] that go there. Rows that no index names stay.
 *   scatter         inputs: table, index. outputs: likewise; y[index[i]] = value
 *
 * Indices, threads and failures are as indexing.h tells. The order is that of i, a mean
 * is the sum divided by the number of terms, and a NaN stays one.
 */
#ifndef PTAC_OPS_INDEXING_REDUCE_H
#define PTAC_OPS_INDEXING_REDUCE_H

#include "ops/indexing/indexing.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef enum ptac_reducing_how {
    PTAC_REDUCE_SUM,
    PTAC_REDUCE_MEAN,
    PTAC_REDUCE_LARGEST,
    PTAC_REDUCE_SMALLEST,
} ptac_reducing_how;

typedef struct ptac_reduction {
    ptac_rows rows; /* the first, so that params are a ptac_rows, too */
    ptac_reducing_how how;
    bool has_self;  /* what the table has is a term */
    bool has_later; /* of two zeros that differ in sign the later one is taken */
    float value;    /* of scatter */
} ptac_reduction;

/* The terms of a row of the table: all of a mean's, and those that it has by now. */
typedef struct ptac_terms {
    uint32_t n, n_done;
} ptac_terms;

/* What rows work on; terms: for each row of the table, or NULL. */
typedef struct ptac_reducing {
    ptac_adding adding;
    const ptac_reduction *r;
    ptac_terms *terms;
} ptac_reducing;

/*
 * The job of a call of scatter_reduce, whose terms are scratch: give it back.
 * PTAC_NO_MEMORY: there is none.
 */
ptac_status ptac_reducing_of(const ptac_call *call, ptac_reducing *job);

/* What rows of scatter_reduce and of scatter accept. */
ptac_reason ptac_reduce_accepts(const ptac_call *call);

/* Have rows [begin, end) of y be what terms come to, none of which is done. */
void ptac_reducing_start(const ptac_reducing *job, int64_t begin, int64_t end);

/* What a row begins with that is no term itself. */
static inline float ptac_reducing_first(ptac_reducing_how how)
{
    return how == PTAC_REDUCE_LARGEST    ? -INFINITY
           : how == PTAC_REDUCE_SMALLEST ? INFINITY
                                         : 0;
}

/* condition ? a : b, of which compilers make no branch: it would be a coin toss. */
static inline float ptac_reducing_pick(bool condition, float a, float b)
{
    uint32_t bits[2];
    float picked;

    memcpy(&bits[0], &b, sizeof b);
    memcpy(&bits[1], &a, sizeof a);
    bits[0] ^= (bits[0] ^ bits[1]) & -(uint32_t)condition;
    memcpy(&picked, &bits[0], sizeof picked);
    return picked;
}

/* y and the next term x. */
static inline float ptac_reduced(ptac_reducing_how how, bool has_later, float y,
                                 float x)
{
    if (how <= PTAC_REDUCE_MEAN)
        return y + x;
    if (how == PTAC_REDUCE_LARGEST)
        return has_later ? ptac_reducing_pick((y > x) | (y != y), y, x)
                         : ptac_reducing_pick((y < x) | (x != x), x, y);
    return has_later ? ptac_reducing_pick((y < x) | (y != y), y, x)
                     : ptac_reducing_pick((y > x) | (x != x), x, y);
}

/* By what the row of a mean is divided. */
static inline float ptac_reducing_count(const ptac_reduction *r, const ptac_terms *of)
{
    return (float)(of->n + r->has_self);
}

#endif
