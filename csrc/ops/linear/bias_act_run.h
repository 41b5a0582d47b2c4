/*
 * bias_act_run.h - how bias_act spreads over threads, the same for every row.
 */
#ifndef PTAC_OPS_LINEAR_BIAS_ACT_RUN_H
#define PTAC_OPS_LINEAR_BIAS_ACT_RUN_H

#include "core/host.h"
#include "ops/linear/bias_act.h"

enum {
    PTAC_ACT_PANEL = 1024,   /* columns summed together, at most */
    PTAC_ACT_ROW_BLOCK = 32, /* rows summed in float */
};

/* One panel of one group of rows, for which sums come back in double. */
typedef struct ptac_act_piece {
    const ptac_act_backward *job;
    int64_t row, last_row;
    int64_t column;
    int n_columns;
} ptac_act_piece;

typedef void (*ptac_act_sum)(const ptac_act_piece *piece, double sums[PTAC_ACT_PANEL]);

/* Rows [begin, end) of a ptac_act_forward, the context. */
void ptac_bias_act_run_forward(const ptac_act_forward *job, ptac_range_fn rows);

/*
 * elements works on elements [begin, end) of a ptac_act_backward without sums, its
 * context; sum on a piece.
 */
void ptac_bias_act_run_backward(const ptac_act_backward *job, ptac_range_fn elements,
                                ptac_act_sum sum);

#endif
