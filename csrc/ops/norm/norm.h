/*
 * norm.h - LayerNorm and RMSNorm of rows of dense tensors, alone or behind a sum, and
 * their gradients. Level close.
 *
 * LayerNorm of a row x of n elements is y = (x - mean) * rstd * weight + bias, where
 * mean = sum(x) / n and rstd = 1 / sqrt(sum((x - mean)^2) / n + eps) (Ba, Kiros and
 * Hinton, "Layer Normalization", 2016). RMSNorm is that with a mean and a bias of 0
 * (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). mean and rstd are
 * what aten's native_layer_norm and _fused_rms_norm save.
 */
#ifndef PTAC_OPS_NORM_NORM_H
#define PTAC_OPS_NORM_NORM_H

#include "core/kernel.h"

typedef struct ptac_norm {
    int64_t n_rows, width;
    double eps;
    int n_processors; /* multiprocessors of the device; a row of the CPU ignores it */
    bool is_rms;
    bool is_trained; /* a gradient follows: of rms_norm and add_norm on the CPU */
} ptac_norm;

/*
 * Inputs of layer_norm, rms_norm and add_norm. All are of one dtype; weight and bias
 * have the width's elements. A call has all of them; those that it does without have no
 * data: the residual but for add_norm, the bias of RMSNorm, weights that nobody learns.
 */
enum {
    PTAC_NORM_X,
    PTAC_NORM_WEIGHT,
    PTAC_NORM_BIAS,
    PTAC_NORM_RESIDUAL,
    PTAC_NORM_N_INPUTS,
};

/*
 * Outputs: y, and rstd and mean of the rows as float32. add_norm gives the sum of x and
 * residual too, with the bits of stock's; what is normalized is the sum before it is
 * rounded to 16 bits. Of these rstd and mean may be without data, and RMSNorm's mean
 * is. No output lies on an input.
 */
enum {
    PTAC_NORM_Y,
    PTAC_NORM_RSTD,
    PTAC_NORM_MEAN,
    PTAC_NORM_SUM,
    PTAC_NORM_N_OUTPUTS,
};

/*
 * Inputs of the gradients. x is what was normalized: add_norm's sum. grad_sum is what
 * reaches that sum by other ways, of add_norm only; it may be without data.
 */
enum {
    PTAC_NORM_GRAD_Y,
    PTAC_NORM_GRAD_X_OF,
    PTAC_NORM_GRAD_RSTD,
    PTAC_NORM_GRAD_MEAN,
    PTAC_NORM_GRAD_WEIGHT_OF,
    PTAC_NORM_GRAD_SUM,
    PTAC_NORM_GRAD_N_INPUTS,
};

/*
 * Outputs of the gradients, of x's dtype: with x^ = (x - mean) * rstd and g = grad_y *
 * weight they are rstd * (g - sum(g) / n - x^ * sum(g * x^) / n) + grad_sum (without
 * sum(g) of RMSNorm), the sum of grad_y * x^ over the rows, and that of grad_y. Any of
 * them may be without data. add_norm's first is the gradient of x and of residual.
 * parts is what a device works in: float32, ptac_norm_parts() of them.
 */
enum {
    PTAC_NORM_GRAD_X,
    PTAC_NORM_GRAD_WEIGHT,
    PTAC_NORM_GRAD_BIAS,
    PTAC_NORM_GRAD_PARTS,
    PTAC_NORM_GRAD_N_OUTPUTS,
};

/*
 * 1 / sqrt(variance + eps) and *mean of the row at x, by their definitions in double.
 * LayerNorm's are NaN where a number is not finite; RMSNorm has no mean, 0.
 */
double ptac_norm_statistics(const ptac_norm *params, const float *x, double *mean);

/* Elements of parts that a gradient's call needs; 0 without those of weights. */
int64_t ptac_norm_parts(const ptac_norm *params, bool has_weight_gradients);

#endif
