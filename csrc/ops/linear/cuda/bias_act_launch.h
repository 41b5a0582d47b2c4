/*
 * bias_act_launch.h - launches of bias_act.cu.
 *
 * Matrices of one dtype, rows at any distance; data of the device. Nothing is written
 * by a launch that was refused.
 */
#ifndef PTAC_OPS_LINEAR_CUDA_BIAS_ACT_LAUNCH_H
#define PTAC_OPS_LINEAR_CUDA_BIAS_ACT_LAUNCH_H

#include "core/kernel.h"
#include "ops/linear/bias_act.h"

/*
 * y = act(z + bias); y may be z, or NULL where only the mask is wanted. bias may be
 * NULL. kept, unless it is NULL, gets z + bias, rounded, of which the activation is
 * then taken; it may be z. mask, unless it is NULL, gets a bit for each element, set
 * where the gradient of ReLU passes: !(z + bias <= 0). Its rows begin ldmask bytes
 * apart; bits behind n_cols in the last byte are 0, bytes behind that stay as they
 * were.
 */
typedef struct ptac_act_forward_cuda {
    ptac_dtype dtype;
    ptac_act act;
    int64_t n_rows, n_cols;
    const void *z, *bias;
    void *y, *kept, *mask;
    int64_t ldz, ldy, ldkept, ldmask;
} ptac_act_forward_cuda;

/*
 * gz = g * act'(saved), as ptac_act_backward has it, and gb its sums over columns. gz
 * or gb may be NULL; gz may be g. ReLU takes mask or, without one, y as saved. With gb
 * partials has ptac_bias_grad_bytes().
 */
typedef struct ptac_act_backward_cuda {
    ptac_dtype dtype;
    ptac_act act;
    int64_t n_rows, n_cols;
    const void *g, *saved, *mask;
    void *gz, *gb;
    float *partials;
    int64_t ldg, ldsaved, ldmask, ldgz;
} ptac_act_backward_cuda;

size_t ptac_bias_grad_bytes(int64_t n_rows, int64_t n_cols);

/* PTAC_TAKE where the kernels are there; see ptac_cuda_ask(). */
ptac_reason ptac_bias_act_ask(void);

/* One launch; two with gb. The stream is the call's. */
ptac_status ptac_bias_act_forward_on(const ptac_act_forward_cuda *job,
                                     const ptac_call *call);
ptac_status ptac_bias_act_backward_on(const ptac_act_backward_cuda *job,
                                      const ptac_call *call);

#endif
