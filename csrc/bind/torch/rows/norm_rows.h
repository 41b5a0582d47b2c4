/*
 * norm_rows.h - what rows of LayerNorm and RMSNorm are given, for overrides and for the
 * call paths of add_norm.
 */
#ifndef PTAC_BIND_TORCH_ROWS_NORM_ROWS_H
#define PTAC_BIND_TORCH_ROWS_NORM_ROWS_H

#include "bind/torch/bridge.h"
#include "ops/norm/norm.h"

/*
 * Fill in how many rows x has by its last n_last dimensions, how wide they are, and the
 * size of a call's CUDA device; or say why there are none.
 */
ptac_reason ptac_norm_read_rows(const ptac_call *call, const ptac_view *x,
                                int64_t n_last, ptac_norm *p);

/* Why a weight or bias of x's rows, where there is one, is none. */
ptac_reason ptac_norm_weight_reason(const ptac_view *weight, const ptac_view *x,
                                    int64_t n_last);

/* Why these, where they are there, are not n elements of that dtype. */
ptac_reason ptac_norm_elements_reason(const ptac_view *view, ptac_dtype dtype,
                                      int64_t n);

#endif
