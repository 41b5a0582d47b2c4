/*
 * convolution.h - what the descriptions of convolution and of its backward share.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_CONV_CONVOLUTION_H
#define PTAC_BIND_TORCH_OVERRIDES_CONV_CONVOLUTION_H

#include "bind/torch/overrides/override.h"
#include "bind/torch/rows/convolution/depthwise.h"

/* The six arguments that describe a convolution. */
static inline ptac_geometry ptac_conv_geometry(const ptac_argument *options)
{
    return (ptac_geometry){
        .stride = options[0].ints,
        .padding = options[1].ints,
        .dilation = options[2].ints,
        .is_transposed = options[3].truth,
        .output_padding = options[4].ints,
        .groups = options[5].number,
    };
}

/*
 * The gradients that are asked for, in part by stock; or false where none is ours,
 * counted.
 */
bool ptac_conv_backward(const ptac_arguments *args, at_tensor *out);

#endif
