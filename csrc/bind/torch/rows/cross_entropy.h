/*
 * cross_entropy.h - cross_entropy and its gradient on handles, for Python's call path
 * and for the operator in the dispatcher.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CROSS_ENTROPY_H
#define PTAC_BIND_TORCH_ROWS_CROSS_ENTROPY_H

#include "bind/torch/dispatch.h"
#include "ops/loss/cross_entropy.h"

/* Arguments as aten::cross_entropy_loss takes them; handles are borrowed. */
typedef struct ptac_cross_entropy_args {
    at_tensor x, target, weight; /* backward: p in place of x; weight may be NULL */
    int64_t reduction, ignore_index;
    double label_smoothing;
} ptac_cross_entropy_args;

/* Read sizes and say whether a row may take them. args must outlive the call. */
ptac_reason ptac_cross_entropy_read(const ptac_cross_entropy_args *args,
                                    ptac_cross_entropy *params, ptac_call *call);

/*
 * Run the row: *loss, and *p where it is not NULL, are new tensors. False where stock
 * has to do it, counted.
 */
bool ptac_cross_entropy_run(const ptac_kernel *row, ptac_call *call, at_tensor *loss,
                            at_tensor *p);

/*
 * The gradient of x from p, and from grad of the loss, by the row of that name. over_p:
 * p is needed by nobody else, and *grad_x may be written over it. False likewise.
 */
bool ptac_cross_entropy_gradient(const char *row_name,
                                 const ptac_cross_entropy_args *args, at_tensor grad,
                                 bool over_p, at_tensor *grad_x);

#endif
