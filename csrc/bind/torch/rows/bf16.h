/*
 * bf16.h - the room of reduced precision: what its rows share.
 *
 * Rows with in_bf16 set round float32 operands to bfloat16, have torch's libraries
 * multiply them, and hand back float32. Copies live for the time of a call.
 */
#ifndef PTAC_BIND_TORCH_ROWS_BF16_H
#define PTAC_BIND_TORCH_ROWS_BF16_H

#include "bind/torch/bridge.h"

/*
 * Why no row may round its operands now: the user's own autocast, on or deliberately
 * off in this block of theirs, or oneDNN switched off. PTAC_TAKE: nothing against it.
 */
ptac_reason ptac_bf16_reason(void);

/* Calls that rows of this room have served since the process started. */
void ptac_bf16_count(void);
uint64_t ptac_bf16_calls(void);

/*
 * What forward calls in bfloat16 leave for their gradients, see bf16_grad.c.
 *
 * Whether autograd saves anything of a call with these inputs, some of them NULL.
 */
bool ptac_bf16_wants_grad(const at_tensor *inputs, int n);

/* Into a logsumexp of attention; false where that is too small to hold it. */
bool ptac_bf16_sign(at_tensor sums);
bool ptac_bf16_is_signed(at_tensor sums);

/* For the node of this operator's call; whether that of the gradient computed now. */
void ptac_bf16_mark(const at_tensor *inputs, int n);
bool ptac_bf16_is_marked(void);

/*
 * Of an operator that forward calls and gradients have alike: whether no gradient is
 * computed now, or one that is marked. False where torch's nodes cannot be read.
 */
bool ptac_bf16_may_follow(void);

/*
 * Learn how to read nodes from three that this thread has just made, and their sequence
 * numbers. False: nothing is ever marked.
 */
bool ptac_bf16_learn_nodes(void *const nodes[3], const uint64_t numbers[3]);

/* A copy with the view's strides, which leave no gaps. */
at_error ptac_bf16_alike(const ptac_view *view, at_tensor *made);

/*
 * Strides without gaps, dimensions in the order of the view's, as torch.empty_like()
 * has them; the last one comes last. At most four dimensions.
 */
void ptac_strides_in_order(const ptac_view *view, int64_t strides[4]);

/* A copy with these strides; the view's last dimension has stride 1. */
at_error ptac_bf16_in_order(const ptac_view *view, at_tensor *made);

/*
 * How many terms a product has whose first factor, of k terms, has these strides: with
 * AMX oneDNN reads whole tiles of rows, also beyond a row's end, and multiplies what it
 * finds there by zeros, so that a NaN in the next row would spread to this one. Zeros
 * follow the terms there.
 */
int64_t ptac_bf16_terms(const int64_t sizes[2], const int64_t strides[2]);

/*
 * A copy of a matrix, row by row or column by column as it is, with zeros up to so many
 * terms, which are its dimension terms. made_strides are the copy's.
 */
typedef struct ptac_bf16_matrix {
    const float *data;
    int64_t sizes[2], strides[2];
    int terms;
} ptac_bf16_matrix;
at_error ptac_bf16_copy(const ptac_bf16_matrix *matrix, int64_t n_terms,
                        at_tensor *made, int64_t made_strides[2]);

/*
 * A new float32 tensor with the strides of a bfloat16 one without gaps; PTAC_FAILED
 * where that is anything else.
 */
ptac_status ptac_bf16_widened(at_tensor narrow, at_tensor *made);

/* A row of this room. */
#define PTAC_BF16_ROW(id, row_name, takes, computes)                                   \
    PTAC_ROW(id, row_name, PTAC_FAST, PTAC_CPU_AVX512_BF16, takes, computes,           \
             .in_bf16 = true)

#endif
