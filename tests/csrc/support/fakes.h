/*
 * fakes.h - an operator with three rows that do nothing, for tests of the chooser.
 *
 * A fake call says itself what classify() and accepts() have to answer.
 */
#ifndef PTAC_TESTS_FAKES_H
#define PTAC_TESTS_FAKES_H

#include "core/chooser.h"

/* The three rows are registered for the one operator, a fourth for the other. */
#define FAKE_OP       PTAC_OP_ADAM_STEP
#define OTHER_FAKE_OP PTAC_OP_ADAMW_STEP

/* Asks no table. It has a row for each ptac_isa, registered from the last one on. */
#define DECIDED_FAKE_OP PTAC_OP_CROSS_ENTROPY

enum {
    N_FAKE_ROWS = 3,
    N_FAKE_KINDS = 3,
};

typedef struct fake_params {
    int kind;
    int64_t work, uses; /* uses 0: not told */
    int64_t sizes[3];   /* of a product */
    ptac_reason classify, accept;
    bool leaves; /* the row "avx512" leaves such calls to others */
} fake_params;

extern const ptac_kernel fake_rows[N_FAKE_ROWS];
extern const ptac_kernel other_fake_row;
extern const ptac_kernel rounding_fake_row; /* of FAKE_OP, in no table of the tests' */
extern const ptac_kernel decided_rows[PTAC_ISA_AVX512 + 1];

/* A call of FAKE_OP with these params, which must outlive it. */
ptac_call fake_call(const fake_params *params, ptac_dtype dtype, int n_threads);

#endif
