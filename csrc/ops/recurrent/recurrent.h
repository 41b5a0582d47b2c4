/*
 * recurrent.h - the operators lstm, gru, rnn_tanh and rnn_relu, a layer in one
 * direction over all steps of a sequence, and their gradients. Level close.
 *
 * Formulas and the order of gates are torch's (nn.LSTM, nn.GRU, nn.RNN). The gates' two
 * products and their nonlinear functions are one pass: rows of the batch do not depend
 * on each other, so that each thread takes some of them through all steps. Results
 * depend neither on threads nor on other rows.
 *
 * Backward computes the gradients of the gates' sums; those of the weights and of x are
 * products of these, which bind/torch/rows/recurrent leaves to torch's library.
 */
#ifndef PTAC_OPS_RECURRENT_RECURRENT_H
#define PTAC_OPS_RECURRENT_RECURRENT_H

#include "core/kernel.h"

/*
 * Sizes: x [n_steps, n_rows, n_in], whose last stride is 1; all others are contiguous:
 * w_ih [g n_hidden, n_in] and w_hh [g n_hidden, n_hidden] of g = 4 gates (i, f, g, o)
 * or 3 (r, z, n), or of rnn 1; both biases [g n_hidden], or none; states [n_rows,
 * n_hidden]. Only lstm has c0.
 */
enum {
    PTAC_RECURRENT_X,
    PTAC_RECURRENT_W_IH,
    PTAC_RECURRENT_W_HH,
    PTAC_RECURRENT_B_IH,
    PTAC_RECURRENT_B_HH,
    PTAC_RECURRENT_H0,
    PTAC_RECURRENT_C0,
    PTAC_RECURRENT_N_INPUTS,
};

/*
 * y [n_steps, n_rows, n_hidden] and the last states; only lstm has cn. For a gradient
 * also gates [n_steps, n_rows, 4 n_hidden]: i, f, g, o, or r, z, n and w_hh h + b_hh of
 * n; and of lstm cells [n_steps, n_rows, n_hidden]: c of each step. Absent without one,
 * and of rnn, whose gradient needs y alone.
 */
enum {
    PTAC_RECURRENT_Y,
    PTAC_RECURRENT_HN,
    PTAC_RECURRENT_CN,
    PTAC_RECURRENT_GATES,
    PTAC_RECURRENT_CELLS,
    PTAC_RECURRENT_N_OUTPUTS,
};

/*
 * Backward: first is c0, or of gru and rnn h0; states are cells, or y; gates of rnn are
 * y, too. A gradient that is
 * absent is zero; that of y needs only its last stride to be 1.
 */
enum {
    PTAC_RECURRENT_GRAD_W_HH,
    PTAC_RECURRENT_GRAD_FIRST,
    PTAC_RECURRENT_GRAD_STATES,
    PTAC_RECURRENT_GRAD_GATES,
    PTAC_RECURRENT_GRAD_Y,
    PTAC_RECURRENT_GRAD_HN,
    PTAC_RECURRENT_GRAD_CN,
    PTAC_RECURRENT_GRAD_N_INPUTS,
};

/*
 * The gradients of the gates' sums [n_steps, n_rows, g n_hidden] and, summed over all
 * steps and rows, of b_ih [g n_hidden]; of h0 and c0. In gru those of w_hh h + b_hh and
 * b_hh are others than those of w_ih x + b_ih, and come last; others do not have
 * them. Only lstm has c0.
 */
enum {
    PTAC_RECURRENT_OF_SUMS,
    PTAC_RECURRENT_OF_B_IH,
    PTAC_RECURRENT_OF_H0,
    PTAC_RECURRENT_OF_C0,
    PTAC_RECURRENT_OF_HIDDEN_SUMS,
    PTAC_RECURRENT_OF_B_HH,
    PTAC_RECURRENT_N_GRADIENTS,
};

/*
 * The params of all. A packed sequence has steps of as many rows as the one before
 * them, or fewer, at least one: then starts says where those of each step begin in what
 * has a row for each row of each step, which is [1, rows of all steps, ...]; h0, c0 and
 * the last states have the rows of step 0. NULL: all steps have all rows.
 */
typedef struct ptac_recurrent {
    bool is_reverse;       /* from the last step to the first */
    const int64_t *starts; /* n_steps + 1 numbers */
    int64_t n_steps;       /* where there are starts */
    bool is_cell;          /* asked for as one step alone, as by nn.LSTMCell */
} ptac_recurrent;

/* The steps of a call, in time. */
typedef struct ptac_recurrent_steps {
    const int64_t *starts;
    int64_t n_steps, n_rows; /* n_rows: of step 0 */
    int64_t n_all;           /* rows of all steps */
    bool is_reverse;
} ptac_recurrent_steps;

enum {
    PTAC_LSTM_GATES = 4,
    PTAC_GRU_GATES = 3,
    PTAC_RNN_GATES = 1,
    PTAC_RECURRENT_KEPT = 4, /* vectors of n_hidden in gates */
};

static inline bool ptac_recurrent_is_gru(const ptac_call *call)
{
    return call->op == PTAC_OP_GRU || call->op == PTAC_OP_GRU_BACKWARD;
}

static inline bool ptac_recurrent_is_lstm(const ptac_call *call)
{
    return call->op == PTAC_OP_LSTM || call->op == PTAC_OP_LSTM_BACKWARD;
}

static inline bool ptac_recurrent_is_relu(const ptac_call *call)
{
    return call->op == PTAC_OP_RNN_RELU || call->op == PTAC_OP_RNN_RELU_BACKWARD;
}

static inline int ptac_recurrent_gates(const ptac_call *call)
{
    if (ptac_recurrent_is_lstm(call))
        return PTAC_LSTM_GATES;
    return ptac_recurrent_is_gru(call) ? PTAC_GRU_GATES : PTAC_RNN_GATES;
}

/* The gradient's operator of a forward one. */
static inline ptac_op ptac_recurrent_backward_of(ptac_op op)
{
    switch (op) {
    case PTAC_OP_LSTM:
        return PTAC_OP_LSTM_BACKWARD;
    case PTAC_OP_GRU:
        return PTAC_OP_GRU_BACKWARD;
    case PTAC_OP_RNN_TANH:
        return PTAC_OP_RNN_TANH_BACKWARD;
    default:
        return PTAC_OP_RNN_RELU_BACKWARD;
    }
}

/* by_step: x or what forward has kept, which have a row for each row of each step. */
static inline ptac_recurrent_steps ptac_recurrent_steps_of(const ptac_call *call,
                                                           const ptac_view *by_step)
{
    const ptac_recurrent *params = call->params;
    const bool is_packed = params->starts != NULL;

    return (ptac_recurrent_steps){
        .starts = params->starts,
        .n_steps = is_packed ? params->n_steps : by_step->sizes[0],
        .n_rows = is_packed ? params->starts[1] : by_step->sizes[1],
        .n_all = by_step->sizes[0] * by_step->sizes[1],
        .is_reverse = params->is_reverse,
    };
}

/* The step that is computed as number s. */
static inline int64_t ptac_recurrent_step(const ptac_recurrent_steps *steps, int64_t s)
{
    return steps->is_reverse ? steps->n_steps - 1 - s : s;
}

/* How many rows step t has. */
static inline int64_t ptac_recurrent_rows(const ptac_recurrent_steps *steps, int64_t t)
{
    return steps->starts ? steps->starts[t + 1] - steps->starts[t] : steps->n_rows;
}

/* Where a row of step t lies among those of all steps. */
static inline int64_t ptac_recurrent_at(const ptac_recurrent_steps *steps, int64_t t,
                                        int64_t row)
{
    return row + (steps->starts ? steps->starts[t] : t * steps->n_rows);
}

/* The same of the step that is computed before it, or after it; -1: there is none. */
static inline int64_t ptac_recurrent_beside(const ptac_recurrent_steps *steps,
                                            int64_t t, int64_t row, bool is_after)
{
    const int64_t other = steps->is_reverse == is_after ? t - 1 : t + 1;

    if (other < 0 || other >= steps->n_steps ||
        row >= ptac_recurrent_rows(steps, other))
        return -1;
    return ptac_recurrent_at(steps, other, row);
}

#endif
