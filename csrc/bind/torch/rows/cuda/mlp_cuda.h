/*
 * mlp_cuda.h - mlp and its gradients of handles on a CUDA device.
 *
 * The rows are those of ops/linear/cuda. Here is what they have to be given: views,
 * outputs and workspace by torch's allocator, cuBLASLt and its handle; and which calls
 * are worth it. Level close.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CUDA_MLP_CUDA_H
#define PTAC_BIND_TORCH_ROWS_CUDA_MLP_CUDA_H

#include "bind/torch/rows/linear_act.h"
#include "ops/linear/mlp.h"

/* A forward call. It points into itself: it stays where it was read. */
typedef struct ptac_mlp_cuda {
    at_tensor in[PTAC_MLP_INPUTS]; /* borrowed; biases may be NULL */
    ptac_matrix rows;              /* x, folded */
    bool keeps_saved;              /* whether a gradient passes the activation */
    at_tensor out[PTAC_MLP_OUTPUTS];
    ptac_mlp_params params;
    ptac_call call;
} ptac_mlp_cuda;

/* A backward call. Tensors that no gradient needs, and gradients of them, are NULL. */
typedef struct ptac_mlp_gradients {
    at_tensor in[PTAC_MLP_GRAD_INPUTS]; /* borrowed */
    bool wants[PTAC_MLP_INPUTS];
    at_tensor out[PTAC_MLP_INPUTS];
} ptac_mlp_gradients;

/* Fill in params and call for the tensors in m->in; or say why not. */
ptac_reason ptac_mlp_cuda_read(ptac_mlp_cuda *m, ptac_act activation);

/*
 * Why a block with a gradient, which has been read, would gain nothing: it has neither
 * a bias, whose sum is a launch of stock's, nor an activation for which the library has
 * an epilogue; it was measured slower; or it is unmeasured and small.
 */
ptac_reason ptac_mlp_cuda_worth(const ptac_mlp_cuda *m);

/* From how many multiply-adds on blocks are ours, unmeasured (tests). */
void ptac_mlp_cuda_set_least(int64_t work);

/* The row for a call that has been read, or NULL and why. Counts nothing. */
const ptac_kernel *ptac_mlp_cuda_choose(ptac_mlp_cuda *m, ptac_reason *why);

/* Make the outputs and run. Counts; false where stock has to do it. */
bool ptac_mlp_cuda_run(const ptac_kernel *row, ptac_mlp_cuda *m);

/*
 * The gradients by the row of that name; that of y has y's sizes. Counts; false where
 * stock has to do it.
 */
bool ptac_mlp_cuda_backward(const char *row_name, ptac_act activation, bool allows_tf32,
                            ptac_mlp_gradients *gradients);

#endif
