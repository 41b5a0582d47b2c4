/*
 * depthwise.h - depthwise convolutions on handles, of images and of signals.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CONVOLUTION_DEPTHWISE_H
#define PTAC_BIND_TORCH_ROWS_CONVOLUTION_DEPTHWISE_H

#include "bind/torch/rows/convolution/convolution.h"
#include "ops/conv/depthwise/depthwise.h"

/* Each channel has one kernel of its own. The views may be of anything. */
bool ptac_is_depthwise(const ptac_view *x, const ptac_view *w, int64_t groups);

/*
 * Fill params in, or say why stock must look at the call. Signals, [N, C, L], are
 * images of one row.
 */
ptac_reason ptac_depthwise_params(const ptac_view *x, const ptac_view *w,
                                  const ptac_geometry *geo, ptac_depthwise *params);

/* Sizes of y, as many as x has. */
void ptac_depthwise_output_sizes(const ptac_depthwise *params, int n_dims,
                                 int64_t sizes[4]);

#endif
