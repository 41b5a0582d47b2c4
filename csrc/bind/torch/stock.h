/*
 * stock.h - reaching torch's own kernel from under our override of it.
 *
 * First choice is at::cpu::<op>, which is that kernel and nothing else. Where a torch
 * lacks the symbol, the operator's out= overload leads to the same kernel through the
 * dispatcher, a microsecond slower.
 */
#ifndef PTAC_BIND_TORCH_STOCK_H
#define PTAC_BIND_TORCH_STOCK_H

#include "bind/torch/serve.h"

/* A new boxed list. */
stable_ivalue at_make_ints(const int64_t *values, int n);

/* A shared handle, as one argument of a boxed call. */
stable_ivalue at_box_tensor(at_tensor tensor);

/*
 * Call op.overload with n_args boxed arguments, which it takes over, followed by
 * n_outputs empty tensors of the given torch dtypes, which it resizes and fills.
 * Throws torch's error. args has room for n_args + n_outputs.
 */
void at_call_out(const char *op, const char *overload, stable_ivalue *args, int n_args,
                 const int32_t *dtypes, at_tensor *outputs, int n_outputs);

/*
 * End of a shadow check: compare, release the loser and leave the winner in ours.
 * The handles in stock are taken over.
 */
void ptac_shadow_settle(const ptac_kernel *row, at_tensor *ours, at_tensor *stock,
                        int n_outputs, int64_t t_ours_ns, int64_t t_stock_ns);

#endif
