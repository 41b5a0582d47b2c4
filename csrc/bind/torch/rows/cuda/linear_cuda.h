/*
 * linear_cuda.h - linear_act and its gradients of handles on a CUDA device.
 *
 * The rows are those of ops/linear/cuda. Here is what they have to be given: views,
 * outputs and workspace by torch's allocator, cuBLASLt and its handle; and which calls
 * are worth it. Level close.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CUDA_LINEAR_CUDA_H
#define PTAC_BIND_TORCH_ROWS_CUDA_LINEAR_CUDA_H

#include "bind/torch/rows/linear_act.h"

/* A forward call. It points into itself: it stays where it was read. */
typedef struct ptac_linear_cuda {
    ptac_linear_tensors t; /* of which rows is x, folded */
    ptac_linear_act params;
    ptac_call call;
} ptac_linear_cuda;

/*
 * Fill in params and call for the tensors in l->t, which may be of any dtype that the
 * rows take; or say why not.
 */
ptac_reason ptac_linear_cuda_read(ptac_linear_cuda *l, ptac_act activation,
                                  bool is_training);

/*
 * Why the device would gain nothing by such a call, which has been read. A product by
 * itself is as fast by stock, which adds the bias in its epilogue too. Else rows have
 * to launch less, or move less; and where there is a gradient, whose node is Python's,
 * a layer has to be measured faster or, unmeasured, to keep the device busy for longer
 * than the host.
 */
ptac_reason ptac_linear_cuda_worth(const ptac_linear_cuda *l);

/* From how many multiply-adds on there is a gradient of ours, unmeasured (tests). */
void ptac_linear_cuda_set_least(int64_t work);

/*
 * The row for a call that has been read, or NULL and why. Counts nothing.
 */
const ptac_kernel *ptac_linear_cuda_choose(ptac_linear_cuda *l, ptac_reason *why);

/* Make y, z where there is a z, and run. Counts; false where stock has to do it. */
bool ptac_linear_cuda_run(const ptac_kernel *row, ptac_linear_cuda *l);

/*
 * The gradients by the row of that name; grad has y's sizes. Counts; false where stock
 * has to do it.
 */
bool ptac_linear_cuda_backward(const char *row_name, ptac_act activation,
                               bool allows_tf32, ptac_linear_gradients *gradients);

#endif
