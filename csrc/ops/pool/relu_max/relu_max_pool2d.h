/*
 * relu_max_pool2d.h - 2-d max pooling of ReLU(x), forward and backward. Level exact.
 *
 * Forward: inputs x; outputs y of x's dtype and layout, and for the gradient a byte for
 * each output, or nothing: which tap of its window, counted row by row, was chosen.
 * PTAC_POOL_NO_TAP where ReLU has left nothing above 0: whatever torch's pooling
 * chooses there, ReLU stops the gradient. Otherwise ties go to the first tap and NaN to
 * the last, as in max_pool2d.h. Zeros are +0, as ReLU's are on CUDA.
 *
 * Backward: inputs grad_y and those bytes; output grad_x. A position's gradients add up
 * in the order of the outputs that chose it, starting from +0.
 */
#ifndef PTAC_OPS_POOL_RELU_MAX_RELU_MAX_POOL2D_H
#define PTAC_OPS_POOL_RELU_MAX_RELU_MAX_POOL2D_H

#include "ops/pool/relu_max/relu_max_pool2d_cuda.h"
#include "ops/pool/window2d.h"

/* params of both. */
typedef struct ptac_relu_max_pool2d {
    ptac_window2d window; /* of at most PTAC_POOL_NO_TAP taps */
    ptac_image image;     /* out_h and out_w filled in */
} ptac_relu_max_pool2d;

/* Outputs of forward, of which the second may be without data; inputs of backward. */
enum {
    PTAC_RELU_POOL_Y,
    PTAC_RELU_POOL_TAPS,

    PTAC_RELU_POOL_GRAD = 0,
};

static inline bool ptac_relu_pool_has_codes(const ptac_window2d *window)
{
    return window->h.kernel * window->w.kernel <= PTAC_POOL_NO_TAP;
}

#endif
