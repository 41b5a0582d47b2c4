/*
 * bag.h - sums, means and largest elements of bags of a table's rows, and the gradient
 * of the last. Level exact.
 *
 *   embedding_bag
 *       inputs: table, index, offsets. outputs: y [n_bags, width], bag_of, sizes,
 *       largest. Bag b has the rows index[offsets[b]] ... up to the next bag's, and
 *       the last bag those that are left. What aten::_embedding_bag gives: bag_of is
 *       the bag of each index, and may be without data; but of the largest, so may all
 *       behind y. Of sums sizes and largest are zeros; of means, and of the largest,
 *       sizes counts rows but for padding. largest of means is sizes; of the largest it
 *       is the row that each element of y is of.
 *   embedding_bag_max_backward
 *       inputs: x [n_bags, width], largest, sizes. outputs: y [n_rows, width];
 *       y[largest[b, c], c] += x[b, c] from y = 0, for b = 0, 1 ... that have rows
 *
 * Numbers are of float32; integers, in and out, are all of int64 or all of int32, and
 * dense. A bag's rows are added up in their order, as FBGEMM and ATen do. An index that
 * the table does not have, or offsets that do not rise from 0 to n, give PTAC_UNSUITED.
 */
#ifndef PTAC_OPS_INDEXING_BAG_H
#define PTAC_OPS_INDEXING_BAG_H

#include "ops/indexing/indexing.h"

/* Of torch. */
typedef enum ptac_bag_mode {
    PTAC_BAG_SUM,
    PTAC_BAG_MEAN,
    PTAC_BAG_MAX,
} ptac_bag_mode;

enum {
    PTAC_BAG_TABLE,
    PTAC_BAG_INDEX,
    PTAC_BAG_OFFSETS,
    PTAC_BAG_N_INPUTS,

    PTAC_BAG_Y = 0,
    PTAC_BAG_BAG_OF,
    PTAC_BAG_SIZES,
    PTAC_BAG_LARGEST,
    PTAC_BAG_N_OUTPUTS,

    PTAC_BAG_GRAD_X = 0,
    PTAC_BAG_GRAD_LARGEST,
    PTAC_BAG_GRAD_SIZES,
    PTAC_BAG_GRAD_N_INPUTS,
};

typedef struct ptac_bag {
    ptac_rows rows; /* of the gradient: n_rows, width and has_32_bits */
    ptac_bag_mode mode;
    int64_t n_bags;
    int64_t n_offsets; /* n_bags, or one more: where the last bag ends */
    int64_t n_sizes;   /* elements of sizes */
} ptac_bag;

/* Where bag b begins; beyond the last one, n. */
static inline int64_t ptac_bag_begin(const ptac_bag *p, const void *offsets, int64_t b)
{
    return b < p->n_bags ? ptac_rows_index(&p->rows, offsets, b) : p->rows.n;
}

/* The same where another thread may have written to offsets: between 0 and n. */
static inline int64_t ptac_bag_within(const ptac_bag *p, const void *offsets, int64_t b)
{
    const int64_t begin = ptac_bag_begin(p, offsets, b);

    return begin < 0 ? 0 : ptac_least(begin, p->rows.n);
}

/* An integer of an output. */
static inline void ptac_bag_put(const ptac_bag *p, void *integers, int64_t i,
                                int64_t value)
{
    if (p->rows.has_32_bits)
        ((int32_t *)integers)[i] = (int32_t)value;
    else
        ((int64_t *)integers)[i] = value;
}

/* Offsets rise from 0, and end with n where they tell the last bag's end. */
bool ptac_bag_has_offsets(const ptac_call *call);

/* What a bag has in sizes, with so many rows but for padding, and in largest. */
void ptac_bag_finish(const ptac_call *call, int64_t b, int64_t n_rows);

/* Bags of the whole call, as a thread begins: zeros of sizes that no bag has. */
void ptac_bag_clear_rest(const ptac_call *call);

/* A bag of begin to end: its number in bag_of, where that is wanted. */
void ptac_bag_number(const ptac_call *call, int64_t b, int64_t begin, int64_t end);

/* Columns [begin, end) of embedding_bag_max_backward; false: an index is none. */
bool ptac_bag_max_gradient(const ptac_call *call, int64_t begin, int64_t end);

/* Threads share bags, or the columns of the gradient. */
static inline void ptac_share_bags(const ptac_bag *p, ptac_range_fn body, void *job)
{
    const int64_t floats = p->rows.n / p->n_bags * p->rows.width;

    ptac_parallel_for(0, p->n_bags, 16384 / (floats + 1) + 1, body, job);
}

#endif
