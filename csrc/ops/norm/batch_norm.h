/*
 * batch_norm.h - batch normalization by the statistics of the batch or by given ones,
 * its gradient, and an activation behind it. Level close.
 *
 * Of the n elements of a channel y = (x - mean) * rstd * weight + bias, where mean =
 * sum(x) / n and rstd = 1 / sqrt(sum((x - mean)^2) / n + eps) (Ioffe and Szegedy,
 * "Batch Normalization", 2015), but 0 where both the batch's variance and eps are, as
 * in stock. Running statistics r become momentum * s + (1 - momentum) * r, s being the
 * mean, and the variance with n - 1 for n. Stock squares in float: where a square
 * overflows, from 1.8e19 on, its variance is infinite, and a row's here need not be.
 *
 * The gradient of x is weight * rstd * (g - sum(g) / n - x^ * sum(g * x^) / n), where g
 * is that of y and x^ = (x - mean) * rstd; sum(g * x^) and sum(g) are those of weight
 * and bias. By given statistics it is weight * rstd * g, the sums being the same. Where
 * the mean, rstd or the weight is infinite, what is infinite in stock may be NaN here.
 *
 * batch_norm_act is act(y). By running statistics its result may lie on x. By those of
 * the batch it also gives scale = rstd * weight and shift, of which y was formed in
 * float: z = scale * (x - mean) + shift, rounded twice. Its gradient is that of
 * batch_norm for g * act'(z), with z formed anew, to the bit.
 *
 * Rows add up in double, or few elements in float, by parts of a channel that sizes
 * alone decide: threads do not change a bit.
 */
#ifndef PTAC_OPS_NORM_BATCH_NORM_H
#define PTAC_OPS_NORM_BATCH_NORM_H

#include "core/kernel.h"
#include "ops/linear/act.h"

/* A tensor of images of channels of pixels; NHWC is one of images with one pixel. */
typedef struct ptac_channel_norm {
    int64_t n_images, n_channels, n_pixels;
    double eps, momentum;
    bool by_batch; /* else by running statistics */
    ptac_act act;  /* of batch_norm_act */
} ptac_channel_norm;

/*
 * Small images of many are worked on as the rows of a matrix, in which a channel is
 * some columns; NHWC is one already.
 */
static inline bool ptac_channel_norm_is_matrix(const ptac_channel_norm *p)
{
    enum { SMALL = 64 };

    return p->n_pixels == 1 || (p->n_pixels < SMALL && p->n_images >= p->n_pixels);
}

/*
 * Inputs. But for x they have an element for each channel, or no data. Running
 * statistics are there where the call goes by them.
 */
enum {
    PTAC_BATCH_NORM_X,
    PTAC_BATCH_NORM_WEIGHT,
    PTAC_BATCH_NORM_BIAS,
    PTAC_BATCH_NORM_RUNNING_MEAN,
    PTAC_BATCH_NORM_RUNNING_VAR,
    PTAC_BATCH_NORM_N_INPUTS,
};

/* Which activations may be behind it. */
static inline bool ptac_act_is_behind_norm(ptac_act act)
{
    return act == PTAC_ACT_NONE || act == PTAC_ACT_RELU || act == PTAC_ACT_RELU6 ||
           act == PTAC_ACT_SILU || act == PTAC_ACT_HARDSWISH;
}

/*
 * Outputs. By running statistics there is y alone, and the others have no data. New
 * running statistics may lie on the old ones, and have no data where those have none.
 */
enum {
    PTAC_BATCH_NORM_Y,
    PTAC_BATCH_NORM_MEAN,
    PTAC_BATCH_NORM_RSTD,
    PTAC_BATCH_NORM_NEW_MEAN,
    PTAC_BATCH_NORM_NEW_VAR,
    PTAC_BATCH_NORM_N_OUTPUTS,
    /* Of batch_norm_act by the batch, for each channel: */
    PTAC_BATCH_NORM_SCALE = PTAC_BATCH_NORM_N_OUTPUTS,
    PTAC_BATCH_NORM_SHIFT,
    PTAC_BATCH_NORM_ACT_N_OUTPUTS,
};

/*
 * Inputs of the gradient; the weight may have no data. By running statistics those are
 * the last two, and the last one is the variance.
 */
enum {
    PTAC_BATCH_NORM_GRAD_Y,
    PTAC_BATCH_NORM_GRAD_X_OF,
    PTAC_BATCH_NORM_GRAD_WEIGHT_OF,
    PTAC_BATCH_NORM_GRAD_MEAN,
    PTAC_BATCH_NORM_GRAD_RSTD,
    PTAC_BATCH_NORM_GRAD_N_INPUTS,
    /* Of batch_norm_act, as its forward call gave them: */
    PTAC_BATCH_NORM_GRAD_SCALE = PTAC_BATCH_NORM_GRAD_N_INPUTS,
    PTAC_BATCH_NORM_GRAD_SHIFT,
    PTAC_BATCH_NORM_ACT_GRAD_N_INPUTS,
};

/* Outputs of the gradient, any of which may have no data. */
enum {
    PTAC_BATCH_NORM_GRAD_X,
    PTAC_BATCH_NORM_GRAD_WEIGHT,
    PTAC_BATCH_NORM_GRAD_BIAS,
    PTAC_BATCH_NORM_GRAD_N_OUTPUTS,
};

/* An element of an input; what stands for it where the call does without. */
static inline double ptac_channel_input(const ptac_call *call, int input,
                                        int64_t channel, double otherwise)
{
    const float *data = call->inputs[input].data;

    return data ? (double)data[channel] : otherwise;
}

static inline void ptac_channel_output(const ptac_call *call, int output,
                                       int64_t channel, double value)
{
    float *data = call->outputs[output].data;

    if (data)
        data[channel] = (float)value;
}

/* 1 / sqrt(variance + eps) of a batch. */
double ptac_batch_norm_rstd_of_batch(const ptac_channel_norm *p, double variance);

/* y = (x - center) * scale + shift. */
typedef struct ptac_normalization {
    double center, scale, shift;
} ptac_normalization;

/* Of a channel, by its mean and 1 / sqrt(variance + eps). */
ptac_normalization ptac_batch_norm_by(const ptac_call *call, int64_t channel,
                                      double mean, double rstd);

/* 1 / sqrt(variance + eps) of a channel, from what a gradient's call is given. */
double ptac_batch_norm_rstd(const ptac_call *call, int64_t channel);

/* What the batch says of a channel of n elements, into the outputs for it. */
void ptac_batch_norm_save(const ptac_call *call, int64_t channel, double mean,
                          double sum_of_squares, double rstd);

#endif
