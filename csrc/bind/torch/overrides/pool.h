/*
 * pool.h - what the bound pooling operators share: their arguments, read as torch
 * reads them, and the way of a call from there to its outputs.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_POOL_H
#define PTAC_BIND_TORCH_OVERRIDES_POOL_H

#include "bind/torch/overrides/override.h"
#include "bind/torch/stock.h"
#include "ops/pool/window2d.h"

/* An int[2] as it was given: two elements, one that stands for both, or none. */
typedef struct at_pair {
    int64_t values[4];
    int n;
} at_pair;

at_pair at_take_pair(stable_ivalue boxed);
stable_ivalue at_pair_box(const at_pair *pair);

static inline bool at_pair_is_given(const at_pair *pair)
{
    return pair->n == 1 || pair->n == 2;
}

/* As many elements as there were: torch complains about wrong numbers itself. */
static inline at_ints at_pair_ints(const at_pair *pair)
{
    return (at_ints){pair->values, (size_t)(pair->n > 4 ? 4 : pair->n)};
}

/* The arguments that follow the tensors; average pooling has no dilation. */
typedef struct at_window {
    at_pair kernel, stride, padding, dilation;
    bool ceil_mode;
} at_window;

/*
 * Fill in the window and the pooled image of an input, or say why stock must look at
 * the call.
 */
ptac_reason ptac_read_window(const at_window *args, const ptac_view *x,
                             ptac_window2d *window, ptac_image *image);

enum {
    PTAC_POOL_TENSORS = 2, /* inputs, and outputs, at most */
};

/* A call on its way. */
typedef struct ptac_pool_job {
    ptac_call call; /* inputs viewed as they were given, params and image filled in */
    const at_tensor *inputs;
    const ptac_image *image; /* in params */
    ptac_stock_fn stock;     /* for shadow checks */
    const void *args;        /* its context */
} ptac_pool_job;

/*
 * Have the outputs computed by the row that the chooser finds, unless why already
 * speaks against it. False: run stock; the reason has been counted.
 *
 * Forward: outputs of the pooled sizes, the first of x's dtype, a second of int64.
 * Backward: one output like x; inputs, which must have the pooled sizes, likewise.
 */
bool ptac_pool_forward(ptac_pool_job *job, ptac_reason why, at_tensor *out);
bool ptac_pool_backward(ptac_pool_job *job, ptac_reason why, const ptac_view *x,
                        at_tensor *out);

#endif
