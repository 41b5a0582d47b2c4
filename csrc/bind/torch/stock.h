/*
 * stock.h - running a row, and torch's own kernel beside it for a shadow check.
 */
#ifndef PTAC_BIND_TORCH_STOCK_H
#define PTAC_BIND_TORCH_STOCK_H

#include "bind/torch/dispatch.h"

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
