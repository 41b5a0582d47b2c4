/*
 * gen_softmax.h - random matrices of logits, for the softmax family.
 */
#ifndef PTAC_TESTS_GEN_SOFTMAX_H
#define PTAC_TESTS_GEN_SOFTMAX_H

#include "checkrows.h"

/* Rows short and long, a few of them or many; now and then enough for threads. */
void random_rows(rng *r, int64_t *n_rows, int64_t *width);

/*
 * Logits, mostly as networks give them; else each row in a manner of its own: equal,
 * far apart, up to `huge` in magnitude, masked by -inf, with NaN or +inf.
 */
void fill_logits(rng *r, float *x, int64_t n_rows, int64_t width, double huge);

#endif
