/*
 * autocast.h - torch's autocast on CUDA, for calls that do what it would.
 *
 * Autocast keeps its casts of weights for as long as its outermost block lasts, where
 * nobody else can look. So ours are made by torch's own function, which looks there
 * first, and what it makes for us is there for stock.
 */
#ifndef PTAC_BIND_TORCH_AUTOCAST_H
#define PTAC_BIND_TORCH_AUTOCAST_H

#include "bind/torch/bridge.h"

/*
 * What this thread's autocast multiplies in, a dtype of 16 bits; PTAC_OTHER_DTYPE where
 * it is another, or torch does not lend us its function.
 */
ptac_dtype ptac_autocast_dtype(void);

/* Have the inputs of a call that has been read be of the dtypes that they would get. */
void ptac_autocast_see(ptac_call *call);

/*
 * Casts of n tensors, of which some may be NULL, to that dtype: new handles, recorded
 * by autograd. What is not cast, such as float64, is the tensor itself. Where torch
 * fails, as without memory, some may have been made.
 */
at_error ptac_autocast_cast(const at_tensor *given, int n, at_tensor *cast);

#endif
