/*
 * judge.h - what a run left in the buffers of a call, and whether it may be that.
 *
 * Each function that finds a fault prints it behind faults_noted() and returns false.
 */
#ifndef PTAC_TESTS_JUDGE_H
#define PTAC_TESTS_JUDGE_H

#include "checkrows.h"

/* Say what went wrong in the run at hand; always false. */
bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Guards, inputs and, unless the row said PTAC_OK, everything updated in place. */
bool left_alone(const test_call *c, ptac_status status);

/* What a run has computed, buffer by buffer. */
typedef struct results {
    void *of[MAX_BUFFERS];
    ptac_dtype dtypes[MAX_BUFFERS];
} results;

void results_keep(results *kept, const test_call *c);
void results_drop(results *kept);

/*
 * Whether the outputs of this row are close enough to those of "scalar", which may be
 * of a wider dtype; or of the row itself, serially, which are equal.
 */
bool agrees(const test_call *c, const results *with, const generator *g,
            const ptac_kernel *row, bool with_itself);

#endif
