/*
 * counters.h - what ran accelerated and what did not, counted without locks.
 *
 * Each thread owns one block and is its only writer; readers add the blocks up. A
 * block outlives its thread, so nothing that was counted is lost.
 */
#ifndef PTAC_CORE_COUNTERS_H
#define PTAC_CORE_COUNTERS_H

#include "core/base.h"
#include "core/op.h"

typedef struct ptac_op_counts {
    uint64_t accelerated;
    uint64_t failed;
    uint64_t forwarded[PTAC_N_REASONS];
    int64_t t_saved_ns;         /* stock minus row, where a shadow check timed both */
    uint64_t n_timed;           /* shadow checks behind t_saved_ns: all but the first */
    double estimated_served_ns; /* by the tables: stock's time for accelerated calls */
    double estimated_saved_ns;  /* of that, what the rows need less */
    double estimated_stock_ns;  /* stock's time for forwarded calls */
} ptac_op_counts;

void ptac_count_accelerated(ptac_op op);
void ptac_count_forwarded(ptac_op op, ptac_reason reason);
void ptac_count_failed(ptac_op op);

/* An operator's first time is left out: that call makes ready what later ones find. */
void ptac_count_saved(ptac_op op, int64_t t_saved_ns);

/* By the tables, of this thread's next call of op: stock's time, what the row saves. */
void ptac_count_estimate(ptac_op op, double stock_ns, double saved_ns);

/* What the tables say that this thread's calls have saved so far, ns. */
double ptac_estimated_saved_here(void);

/* The row that this thread has noted last for an operator, or NULL. */
struct ptac_kernel;
void ptac_note_row(ptac_op op, const struct ptac_kernel *row);
const struct ptac_kernel *ptac_noted_row(ptac_op op);

/* The sum over all threads since the process started. */
void ptac_counters_read(ptac_op op, ptac_op_counts *sum);

/* Nest. While no call is in flight, tables are freed and dispatcher entries removed. */
void ptac_call_enter(void);
void ptac_call_leave(void);
int64_t ptac_calls_in_flight(void);

/* Calls entered since the process started; a second look tells a quiet moment. */
uint64_t ptac_calls_entered(void);

#endif
