/*
 * cross_entropy.h - cross_entropy and its gradient on handles, for Python's call path
 * and for the operator in the dispatcher.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CROSS_ENTROPY_H
#define PTAC_BIND_TORCH_ROWS_CROSS_ENTROPY_H

#include "bind/torch/dispatch.h"
#include "ops/loss/cross_entropy.h"

/*
 * Arguments as aten::cross_entropy_loss takes them; handles are borrowed.
 *
 * On the CPU backward takes p in place of x, on CUDA x and what forward has saved.
 * Autocast on CUDA has losses in float32, and lets dtypes be mixed.
 */
typedef struct ptac_cross_entropy_args {
    at_tensor x, target, weight; /* weight may be NULL */
    int64_t reduction, ignore_index;
    double label_smoothing;
    ptac_device on;
    bool autocasts;
} ptac_cross_entropy_args;

/*
 * Read sizes and say whether a row may take them; the view of the loss, which is not
 * made yet, has its dtype. args must outlive the call.
 */
ptac_reason ptac_cross_entropy_read(const ptac_cross_entropy_args *args,
                                    ptac_cross_entropy *params, ptac_call *call);

/*
 * Run the row: *loss, and unless it is NULL *kept, p or what is saved in its place, are
 * new tensors. False where stock has to do it, counted.
 */
bool ptac_cross_entropy_run(const ptac_kernel *row, ptac_call *call, at_tensor *loss,
                            at_tensor *kept);

/*
 * The gradient of x by the row of that name, from grad of the loss and what forward has
 * saved, NULL on the CPU. over_p: p is needed by nobody else, and *grad_x may be
 * written over it. False likewise.
 */
bool ptac_cross_entropy_gradient(const char *row_name,
                                 const ptac_cross_entropy_args *args, at_tensor grad,
                                 at_tensor saved, bool over_p, at_tensor *grad_x);

/* The same on the CPU, over p, by a row that the caller has chosen for such a call. */
bool ptac_cross_entropy_gradient_by(const ptac_kernel *row,
                                    const ptac_cross_entropy_args *args, at_tensor grad,
                                    at_tensor *grad_x);

#endif
