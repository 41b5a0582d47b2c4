/*
 * made.h - what calls of linear layers on CUDA write to, and how they run: outputs, of
 * which rows may lie at a distance, and workspace, by torch's allocator.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CUDA_MADE_H
#define PTAC_BIND_TORCH_ROWS_CUDA_MADE_H

#include "bind/torch/rows/linear_act.h"

/* It holds what the call's views point to: it stays where it is until the call ran. */
typedef struct ptac_made {
    at_device on;
    ptac_dtype dtype;
    ptac_matrix of[PTAC_MAX_OUTPUTS]; /* matrices that outputs' views are of */
    at_tensor workspace;              /* owned */
} ptac_made;

/* On the call's device, of its first input's dtype. */
ptac_made ptac_made_for(const ptac_call *call);

/* Output i, of which rows begin ld elements apart; its view is that of a matrix. */
at_error ptac_make_output(ptac_made *m, ptac_call *call, int i, ptac_linear_shape shape,
                          int64_t ld, at_tensor *tensor);

at_error ptac_make_workspace(ptac_made *m, size_t bytes, ptac_products *products);

/* Outputs and workspace of a call that has been read. */
typedef at_error (*ptac_maker)(ptac_made *m, void *context);

/*
 * Whether the device gains by a call, as it was measured, or else as a model says: why
 * not.
 */
ptac_reason ptac_products_worth(const ptac_call *call, bool gains_by_model);

/* The row for a call, whose device gets a handle of cuBLASLt's; or why not. */
const ptac_kernel *ptac_products_choose(ptac_call *call, ptac_reason *why);

/* Make them and run; false for stock, counted. Outputs are the caller's anyway. */
bool ptac_products_run(ptac_call *call, ptac_products *products, const ptac_kernel *row,
                       ptac_maker make, void *context);

/* Likewise a gradient, by the row of that name. */
bool ptac_products_go_back(ptac_call *call, ptac_products *products,
                           const char *row_name, ptac_maker make, void *context);

/* Have a view be that of a matrix; without elements, of none. */
void ptac_see_as(ptac_view *view, const ptac_matrix *matrix);

#endif
