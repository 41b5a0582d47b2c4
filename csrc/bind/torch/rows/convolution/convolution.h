/*
 * convolution.h - convolutions on handles, for the dispatcher's operators and for
 * Python's call paths.
 */
#ifndef PTAC_BIND_TORCH_ROWS_CONVOLUTION_CONVOLUTION_H
#define PTAC_BIND_TORCH_ROWS_CONVOLUTION_CONVOLUTION_H

#include "bind/torch/bridge.h"
#include "ops/conv/conv2d.h"

enum {
    PTAC_SIGNAL = 3, /* dimensions: [N, C, L], an image of one row */
    PTAC_IMAGES = 4,
    PTAC_VOLUMES = 5,
    PTAC_CONV_AXES = 3,       /* of volumes: depth, rows, columns */
    PTAC_CONV_MOST = 1 << 24, /* of sizes and options */
};

/* What follows the tensors. */
typedef struct ptac_geometry {
    ptac_dims stride, padding, dilation, output_padding;
    bool is_transposed;
    int64_t groups;
} ptac_geometry;

/* The same of one axis. */
typedef struct ptac_conv_axis {
    int stride, padding, dilation, output_padding;
} ptac_conv_axis;

/* Of depth, rows and columns; false where a number is none that we can hold. */
bool ptac_conv_axes(const ptac_geometry *geo, int n_dims,
                    ptac_conv_axis axes[PTAC_CONV_AXES]);

/* Outputs along an axis; 0 where there are none. */
int ptac_conv_n_outputs(int64_t size, int64_t kernel, const ptac_conv_axis *axis);

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

/*
 * The user allows oneDNN less than float32, which it knows what to make of. Torch takes
 * 0.2 us to say so: ask where a row of ours would do the call.
 */
bool ptac_conv_precision_is_lowered(void);

/* ptac_admit() of a convolution, which is stock's where precision is lowered. */
const ptac_kernel *ptac_conv_admit(ptac_call *call);

/* Sizes of the result, as many as x has. */
void ptac_conv_output_sizes(const ptac_conv2d *params, int n_dims,
                            int64_t sizes[PTAC_VOLUMES]);

#endif
