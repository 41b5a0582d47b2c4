/*
 * layers.h - recurrent layers on handles, for Python's call path: a layer in one
 * direction with its gradients, and several of them where no gradient is wanted.
 *
 * The operators are those of ops/recurrent/recurrent.h. Level close.
 */
#ifndef PTAC_BIND_TORCH_ROWS_RECURRENT_LAYERS_H
#define PTAC_BIND_TORCH_ROWS_RECURRENT_LAYERS_H

#include "bind/torch/dispatch.h"
#include "ops/recurrent/recurrent.h"

enum {
    PTAC_RECURRENT_MOST_PARTS = 32, /* layers times directions */
};

/* What is absent, as biases may be, has no data and another dtype. */
typedef struct ptac_recurrent_weights {
    ptac_view w_ih, w_hh, b_ih, b_hh;
} ptac_recurrent_weights;

/*
 * The steps of a packed sequence, see ptac_recurrent; without starts it is padded, or
 * one step alone.
 */
typedef struct ptac_packed {
    bool is_cell;
    int64_t *starts;
    int64_t n_steps;
} ptac_packed;

/*
 * From a PackedSequence's batch_sizes, or NULL of a padded one; ptac_packed_drop() the
 * result also where they are none that stock takes.
 */
ptac_reason ptac_packed_read(at_tensor batch_sizes, ptac_packed *packed);
void ptac_packed_drop(ptac_packed *packed);

/* The state before each row of each step of a packed call, whose results are y. */
at_error ptac_packed_states_before(const ptac_call *call, const ptac_view *y,
                                   at_tensor h0, at_tensor *made);

/* What a row has made of a part's weights. */
typedef struct ptac_recurrent_kept {
    const ptac_kernel *row;
    ptac_kept kept;
} ptac_recurrent_kept;

/*
 * Views of a sequence through layers, as torch.lstm() and torch.gru() take it; h and c
 * are [parts, rows, units]. A packed one has x [rows of all steps, numbers]. Without
 * dropout between layers.
 */
typedef struct ptac_recurrent_sequence {
    ptac_op op;
    ptac_view x, h, c; /* c of lstm alone, absent else */
    bool is_batch_first;
    ptac_packed packed;
    int n_layers, n_directions;
    ptac_recurrent_weights weights[PTAC_RECURRENT_MOST_PARTS];
    ptac_recurrent_kept *kept; /* of all parts, whose weights stay; or NULL */
    bool may_keep;             /* nothing is there yet: take memory for it */
} ptac_recurrent_sequence;

/* A layer in one direction: views, and room for the sizes and strides of x. */
typedef struct ptac_recurrent_layer {
    ptac_recurrent params;
    ptac_call call;
    int64_t x_sizes[3], x_strides[3];
} ptac_recurrent_layer;

/*
 * The call of a layer, with outputs for a gradient if it keeps what that needs; or why
 * no row can take its tensors. layer must not move, packed must outlive it; x is [1,
 * rows of all steps, numbers] where that has starts.
 */
ptac_reason ptac_recurrent_read(ptac_op op, bool is_reverse, bool keeps,
                                const ptac_packed *packed,
                                const ptac_view inputs[PTAC_RECURRENT_N_INPUTS],
                                ptac_recurrent_layer *layer);

/* Run an admitted row; made are y, hn, and what else the call has. Counts. */
bool ptac_recurrent_run(const ptac_kernel *row, ptac_recurrent_layer *layer,
                        at_tensor made[PTAC_RECURRENT_N_OUTPUTS]);

/* The view of what is absent. */
static inline ptac_view ptac_absent(void)
{
    return (ptac_view){.dtype = PTAC_OTHER_DTYPE};
}

/*
 * PTAC_TAKE where rows take all parts, which is not counted, or why not; and the last
 * part's row, where row is not NULL.
 */
ptac_reason ptac_recurrent_probe(const ptac_recurrent_sequence *sequence, bool keeps,
                                 const ptac_kernel **row);

/* All of them: y, the last h and, of lstm, the last c. False for stock, counted. */
bool ptac_recurrent_all(const ptac_recurrent_sequence *sequence, at_tensor made[3]);

/* What a layer's backward starts from, borrowed; and its gradients. */
typedef struct ptac_recurrent_gradients {
    ptac_op op; /* of forward */
    bool is_reverse;
    const ptac_packed *packed;
    at_tensor x, w_ih, w_hh, h0, c0, y, gates, cells; /* gates of rnn are y */
    at_tensor grad_y, grad_hn, grad_cn;               /* NULL: zero */
    bool wants_x, wants_w;                            /* w: any weight or bias */
    at_tensor of_x, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_h0, of_c0;
} ptac_recurrent_gradients;

/* Those not wanted stay NULL; b_hh has b_ih's but in gru. False for stock. */
bool ptac_recurrent_backward(ptac_recurrent_gradients *gradients);

#endif
