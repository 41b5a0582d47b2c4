/*
 * batch_norm_fold.h - batch normalization by running statistics, as the scale and the
 * shift of a convolution's outputs.
 */
#ifndef PTAC_OPS_NORM_BATCH_NORM_FOLD_H
#define PTAC_OPS_NORM_BATCH_NORM_FOLD_H

#include <math.h>
#include <stdint.h>

/* One number for each channel. */
typedef struct ptac_batch_norm {
    const float *weight, *bias; /* NULL: 1 and 0 */
    const float *mean, *variance;
    double eps;
} ptac_batch_norm;

/*
 * Fold the normalization of y = scale * sum + shift into scale and shift:
 * (y - mean) / sqrt(variance + eps) * weight + bias, computed in double.
 */
static inline void ptac_batch_norm_fold(const ptac_batch_norm *norm, int64_t channel,
                                        float *scale, float *shift)
{
    const double weight = norm->weight ? norm->weight[channel] : 1.0;
    const double bias = norm->bias ? norm->bias[channel] : 0.0;
    const double factor = weight / sqrt((double)norm->variance[channel] + norm->eps);

    *scale = (float)((double)*scale * factor);
    *shift = (float)(((double)*shift - (double)norm->mean[channel]) * factor + bias);
}

#endif
