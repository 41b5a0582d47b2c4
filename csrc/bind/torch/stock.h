/*
 * stock.h - reaching torch's own kernel from under our override of it.
 *
 * First choice is at::cpu::<op>, which is that kernel and nothing else. Where a torch
 * lacks the symbol, the operator's out= overload leads to the same kernel through the
 * dispatcher, a microsecond slower.
 */
#ifndef PTAC_BIND_TORCH_STOCK_H
#define PTAC_BIND_TORCH_STOCK_H

#include "bind/torch/dispatch.h"

/* A new boxed list. */
stable_ivalue at_make_ints(const int64_t *values, int n);

/* A shared handle, as one argument of a boxed call. */
stable_ivalue at_box_tensor(at_tensor tensor);

/*
 * Call an operator, written "aten::name.overload", with n_args boxed arguments, which
 * it takes over, followed by n_outputs empty tensors of the given torch dtypes, which
 * it resizes and fills. Throws torch's error. args has room for n_args + n_outputs.
 */
void at_call_out(const char *operator, stable_ivalue * args, int n_args,
                 const int32_t *dtypes, at_tensor *outputs, int n_outputs);

/*
 * Torch's own kernel with the arguments in context; throws torch's errors. The handles
 * in out become the caller's.
 */
typedef void (*ptac_stock_fn)(const void *context, at_tensor *out);

/*
 * ptac_run() of an admitted call with outputs already made, followed, where a shadow
 * check is due, by stock's kernel and a comparison, after which made holds what has to
 * be handed out. False: run stock, already counted; made is as it was.
 */
bool ptac_run_checked(const ptac_kernel *row, const ptac_call *call, at_tensor *made,
                      ptac_stock_fn stock, const void *context);

#endif
