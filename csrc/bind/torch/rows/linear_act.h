/*
 * linear_act.h - y = act(x w^T + bias) and its gradients on handles, for Python's call
 * paths and for the operator in the dispatcher.
 *
 * The product is that of a GEMM library of torch's; bias and activation are ours.
 * Level close: stock adds the bias inside its product, and the libraries sum in
 * different orders.
 *
 * inputs[0] of a call is x; params are in ops/linear/linear_act.h.
 */
#ifndef PTAC_BIND_TORCH_ROWS_LINEAR_ACT_H
#define PTAC_BIND_TORCH_ROWS_LINEAR_ACT_H

#include "bind/torch/rows/gemm.h"
#include "ops/linear/linear_act.h"

/* The tensors of a forward call: borrowed inputs, owned results. */
typedef struct ptac_linear_tensors {
    at_tensor x, w, bias;     /* bias may be NULL */
    ptac_matrix rows, weight; /* x and w as ptac_linear_read() reads them */
    at_tensor into; /* where y is to lie, borrowed, or NULL; asked of inference alone */
    at_tensor y;
    at_tensor
        z; /* before the activation; made where the gradient needs it, else NULL */
} ptac_linear_tensors;

/* Likewise of a backward call. A result that is not wanted stays NULL. */
typedef struct ptac_linear_gradients {
    at_tensor grad, x, w;     /* x and w may be NULL where no result needs them */
    at_tensor saved;          /* y or z, see ptac_act_saves_z(); NULL without one */
    ptac_matrix rows, weight; /* x and w as ptac_linear_backward() reads them */
    bool wants_x, wants_w, wants_bias;
    at_tensor grad_x, grad_w, grad_bias;
} ptac_linear_gradients;

/*
 * Leading dimensions folded into one; false where their rows lie at no single stride.
 */
bool ptac_linear_fold(at_tensor tensor, const ptac_view *view, ptac_matrix *matrix);

/* Whether a row of linear_act writes y where it is told to. */
bool ptac_linear_writes_into(const ptac_kernel *row);

/* Whether x or w of such a call lies so that it can be read. */
bool ptac_linear_can_read(const ptac_view *matrix);

/* Sizes as those of a tensor but for the last, and the strides of a dense one. */
typedef struct ptac_linear_shape {
    int n_dims;
    int64_t sizes[PTAC_MAX_DIMS], strides[PTAC_MAX_DIMS];
} ptac_linear_shape;

ptac_linear_shape ptac_linear_shape_like(const ptac_view *x, int64_t last_size);

/*
 * Fill in params and what the chooser asks of the call: float32 x [..., k], w [n, k].
 * tensors must outlive params. Quick, since most small calls go no further.
 */
ptac_reason ptac_linear_size(ptac_linear_tensors *tensors, ptac_act activation,
                             bool is_training, ptac_linear_act *params,
                             ptac_call *call);

/*
 * The rest of such a call: whether the libraries can read these tensors, which are
 * float32, x with its rows at one stride, bias [n].
 */
ptac_reason ptac_linear_read(ptac_linear_tensors *tensors, ptac_call *call);

/*
 * The gradients by the row of that name. grad has y's sizes, contiguous. Counts; false
 * where stock has to do it.
 */
bool ptac_linear_backward(const char *row_name, ptac_act activation,
                          ptac_linear_gradients *gradients);

/* The same by a row that the caller has chosen for such a call. */
bool ptac_linear_backward_by(const ptac_kernel *row, ptac_act activation,
                             ptac_linear_gradients *gradients);

#endif
