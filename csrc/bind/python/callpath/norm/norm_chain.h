/*
 * norm_chain.h - what norm_chain.c and norm_chain_training.c share.
 */
#ifndef PTAC_BIND_PYTHON_CALLPATH_NORM_NORM_CHAIN_H
#define PTAC_BIND_PYTHON_CALLPATH_NORM_NORM_CHAIN_H

#include "bind/python/callpath/chain/chain.h"
#include "ops/norm/batch_norm.h"

/* What torch's norm lays out its result like: its sizes. */
ptac_reason ptac_norm_read_x(const ptac_view *x, ptac_channel_norm *p,
                             bool *channels_last);

/* Whether modules of this kind take tensors of so many dimensions. */
bool ptac_norm_takes(ptac_module_kind kind, int n_dims);

/* The strides of a tensor of x's sizes that is made now; likewise such a tensor. */
void ptac_norm_strides(const ptac_view *x, bool channels_last, int64_t *strides);
at_error ptac_norm_make_like(const ptac_view *x, bool channels_last, at_tensor *made,
                             ptac_view *view);

/* The view of a number a channel, or of no data where the module has None. */
ptac_reason ptac_norm_read_channels(PyObject *tensor, int64_t n_channels,
                                    ptac_view *view);

/*
 * batch_norm_act of x with a gradient, by the statistics of the batch: what the chain's
 * two modules compute, in training mode, and what they change. None where they have to
 * be called.
 */
PyObject *ptac_norm_chain_training(const ptac_chain *chain, PyObject *x);

#endif
