/*
 * convolution.h - what both directions of convolution read alike.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_CONVOLUTION_H
#define PTAC_BIND_TORCH_OVERRIDES_CONVOLUTION_H

#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/bf16.h"
#include "bind/torch/rows/convolution.h"

/* The six arguments that describe a convolution. */
static inline ptac_geometry ptac_conv_geometry(const ptac_arguments *args, int first)
{
    return (ptac_geometry){
        .stride = args->at[first].ints,
        .padding = args->at[first + 1].ints,
        .dilation = args->at[first + 2].ints,
        .is_transposed = args->at[first + 3].truth,
        .output_padding = args->at[first + 4].ints,
        .groups = args->at[first + 5].number,
    };
}

/* torch.jit.trace records what stock's kernel calls in turn. */
static inline bool ptac_is_tracing(void)
{
    return *T.tracing_state() != NULL;
}

#endif
