/*
 * convolution.h - convolutions on handles, for the dispatcher's operators and for
 * Python's call paths.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CONVOLUTION_H
#define PTAC_BIND_TORCH_ROWS_CONVOLUTION_H

#include "bind/torch/bridge.h"
#include "ops/conv/conv2d.h"

/* What follows the tensors. */
typedef struct ptac_geometry {
    ptac_dims stride, padding, dilation, output_padding;
    bool is_transposed;
    int64_t groups;
} ptac_geometry;

/*
 * Fill params in, or say why stock must look at the call. The result is FORWARD, and of
 * transposed convolutions DATA.
 */
ptac_reason ptac_conv_params(const ptac_view *x, const ptac_view *w,
                             const ptac_geometry *geo, ptac_conv2d *params);

/* Likewise, of a call that has its inputs: x, w and, where there is one, the bias. */
ptac_reason ptac_conv_check(const ptac_call *call, const ptac_geometry *geo,
                            ptac_conv2d *params);

/* torch.jit.trace records what stock's kernel calls in turn. */
static inline bool ptac_is_tracing(void)
{
    return *T.tracing_state() != NULL;
}

/* The user allows oneDNN less than float32, which it knows what to make of. */
bool ptac_conv_precision_is_lowered(void);

void ptac_conv_output_sizes(const ptac_conv2d *params, int64_t sizes[4]);

#endif
