/*
 * indexing.h - tables and indices among torch's arguments.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_INDEXING_INDEXING_H
#define PTAC_BIND_TORCH_OVERRIDES_INDEXING_INDEXING_H

#include "bind/torch/bridge.h"
#include "ops/indexing/indexing.h"

/* Read a table along its first dimension, whose rows have to be dense, into *p. */
ptac_reason ptac_read_table(const ptac_view *table, ptac_rows *p);

/* Whether dim, of a tensor with n_dims, is the first. */
static inline bool ptac_is_first_dim(int64_t dim, int64_t n_dims)
{
    return dim == 0 || dim == -n_dims;
}

/* Read what n indices are of. */
ptac_reason ptac_read_index(at_tensor index, int64_t n, ptac_rows *p);

/*
 * An index that has an element for each of x's, which are the same along a row: its
 * first column, as torch.Tensor.expand() gives it.
 */
ptac_reason ptac_read_expanded(at_tensor index, const ptac_view *view,
                               const ptac_view *table, ptac_rows *p);

/* Read x, the gradient of what was looked up in a table of n_rows. */
ptac_reason ptac_read_gradient(const ptac_view *x, int64_t n_rows, ptac_rows *p);

#endif
