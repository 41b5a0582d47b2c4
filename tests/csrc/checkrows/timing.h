/*
 * timing.h - how fast rows do the random calls that they are checked with.
 */
#ifndef PTAC_TESTS_TIMING_H
#define PTAC_TESTS_TIMING_H

#include "checkrows.h"

/* A row beside the row "scalar" of its operator. */
typedef struct row_speed {
    int64_t n_timed;
    double sum_of_logs; /* of scalar's time by the row's */
    double least, most; /* of those ratios */
    int64_t least_case, most_case;
} row_speed;

/*
 * Make up the call of that number, as check_case() does, and time every row that this
 * CPU runs and that takes it, in one thread. speeds has a place for each row of the
 * operator. With shown, each row's time is printed.
 */
void time_case(const generator *g, uint64_t seed, int64_t number, bool shown,
               row_speed *speeds);

void print_speeds(ptac_op op, const row_speed *speeds);

#endif
