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

/*
 * The same of n channels of sums that have such a bias, or none: their scale and shift
 * are filled in, in float. By the fastest that this CPU can run.
 */
typedef void (*ptac_batch_norm_fold_fn)(const ptac_batch_norm *norm, const float *bias,
                                        int64_t n, float *scale, float *shift);

ptac_batch_norm_fold_fn ptac_batch_norm_fold_best(void);

#if defined(__x86_64__)
extern const ptac_batch_norm_fold_fn ptac_batch_norm_fold_avx2,
    ptac_batch_norm_fold_avx512;
#endif

#endif
