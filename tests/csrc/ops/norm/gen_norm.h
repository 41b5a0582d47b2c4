/*
 * gen_norm.h - rows, weights and sizes of random calls of norms and their gradients.
 *
 * u is the unit roundoff of float32.
 */
#ifndef PTAC_TESTS_GEN_NORM_H
#define PTAC_TESTS_GEN_NORM_H

#include "checkrows.h"
#include "ops/norm/norm.h"

static inline ptac_norm *norm_of(test_call *c)
{
    return (ptac_norm *)c->params;
}

/* Rows of all lengths that kernels deal out differently, a few or many. */
void random_norm(rng *r, ptac_norm *p, bool is_rms);

/*
 * Rows apart from zero by up to a hundred times what they spread, or all equal, and now
 * and then one that is not finite.
 */
void fill_rows(rng *r, const ptac_norm *p, float *x);

/* Tensors of a call, of float32 or 16 bits; NULL where it does without, by chance. */
float *norm_rows(test_call *c);
float *norm_weights(rng *r, test_call *c, bool is_there);

/* One a row, always of float32. */
float *norm_statistics(test_call *c);
void norm_output(test_call *c, bool is_there, int n_dims);

void note_norm(test_call *c);

/* Rows are so long that no group of lanes has them in registers. */
static inline bool is_long_norm(const test_call *c)
{
    return ((const ptac_norm *)c->params)->width > 8192;
}

/* The largest of n values that are finite, without its sign. */
double largest_of(const float *x, int64_t n);

#endif
