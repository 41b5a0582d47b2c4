/*
 * batch_norm_ref.c - batch normalization, its gradient and an activation behind it by
 * their definitions, in double, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/linear/bias_act.h"
#include "ops/norm/batch_norm.h"

#include <math.h>

enum {
    FEW_PIXELS = 64,   /* so few that what begins and ends a channel's image counts */
    FEW_CHANNELS = 16, /* of NHWC: less than a vector */
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    enum { NCHW, SMALL, COLUMNS, NHWC, NARROW, N_LAYOUTS };
    const ptac_channel_norm *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->n_images == 0 || p->n_channels == 0 || p->n_pixels == 0)
        return PTAC_EMPTY;
    if (p->by_batch && p->n_images * p->n_pixels == 1)
        return PTAC_SHAPE; /* has no variance */
    if (p->n_pixels == 1)
        shape->kind = p->n_channels < FEW_CHANNELS ? NARROW : NHWC;
    else if (ptac_channel_norm_is_matrix(p))
        shape->kind = COLUMNS;
    else
        shape->kind = p->n_pixels < FEW_PIXELS ? SMALL : NCHW;
    if (!p->by_batch)
        shape->kind += N_LAYOUTS;
    shape->work = p->n_images * p->n_channels * p->n_pixels;
    return PTAC_TAKE;
}

static ptac_reason classify_act(const ptac_call *call, ptac_shape *shape)
{
    enum { NCHW, SMALL, NHWC, NARROW, N_LAYOUTS };
    const ptac_channel_norm *p = call->params;

    if (call->inputs[0].dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (p->n_images == 0 || p->n_channels == 0 || p->n_pixels == 0)
        return PTAC_EMPTY;
    if (!ptac_act_is_behind_norm(p->act))
        return PTAC_ARGUMENT;
    if (p->by_batch) {
        const ptac_reason why = classify(call, shape);

        shape->kind += N_LAYOUTS;
        return why;
    }
    if (p->n_pixels == 1)
        shape->kind = p->n_channels < FEW_CHANNELS ? NARROW : NHWC;
    else
        shape->kind = p->n_pixels < FEW_PIXELS ? SMALL : NCHW;
    shape->work = p->n_images * p->n_channels * p->n_pixels;
    return PTAC_TAKE;
}

#define ACT_KINDS                                                                      \
    "nchw", "nchw_small", "nhwc", "nhwc_narrow", "train_nchw", "train_nchw_small",     \
        "train_nchw_columns", "train_nhwc", "train_nhwc_narrow"

#define KINDS                                                                          \
    "nchw", "nchw_small", "nchw_columns", "nhwc", "nhwc_narrow", "eval_nchw",          \
        "eval_nchw_small", "eval_nchw_columns", "eval_nhwc", "eval_nhwc_narrow"

PTAC_SHAPES(BATCH_NORM, classify, KINDS)
PTAC_SHAPES(BATCH_NORM_BACKWARD, classify, KINDS)
PTAC_SHAPES(BATCH_NORM_ACT, classify_act, ACT_KINDS)
PTAC_SHAPES(BATCH_NORM_ACT_BACKWARD, classify_act, ACT_KINDS)

double ptac_batch_norm_rstd(const ptac_call *call, int64_t channel)
{
    const ptac_channel_norm *p = call->params;
    const double given =
        ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_RSTD, channel, 1);

    return p->by_batch ? given : 1 / sqrt(given + p->eps);
}

double ptac_batch_norm_rstd_of_batch(const ptac_channel_norm *p, double variance)
{
    return variance == 0 && p->eps == 0 ? 0 : 1 / sqrt(variance + p->eps);
}

/*
 * Where a float is infinite or NaN the mean is multiplied before it is taken away, as
 * in stock, so that results are infinite and NaN where stock's are.
 */
ptac_normalization ptac_batch_norm_by(const ptac_call *call, int64_t channel,
                                      double mean, double rstd)
{
    const double bias = ptac_channel_input(call, PTAC_BATCH_NORM_BIAS, channel, 0);
    const double scale =
        rstd * ptac_channel_input(call, PTAC_BATCH_NORM_WEIGHT, channel, 1);

    if (isfinite((float)mean) && isfinite((float)scale))
        return (ptac_normalization){.center = mean, .scale = scale, .shift = bias};
    return (ptac_normalization){.scale = scale, .shift = bias - mean * scale};
}

void ptac_batch_norm_save(const ptac_call *call, int64_t channel, double mean,
                          double sum_of_squares, double rstd)
{
    const ptac_channel_norm *p = call->params;
    const double n = (double)(p->n_images * p->n_pixels), old = 1 - p->momentum;

    ptac_channel_output(call, PTAC_BATCH_NORM_MEAN, channel, mean);
    ptac_channel_output(call, PTAC_BATCH_NORM_RSTD, channel, rstd);
    ptac_channel_output(
        call, PTAC_BATCH_NORM_NEW_MEAN, channel,
        p->momentum * mean +
            old * ptac_channel_input(call, PTAC_BATCH_NORM_RUNNING_MEAN, channel, 0));
    ptac_channel_output(
        call, PTAC_BATCH_NORM_NEW_VAR, channel,
        p->momentum * (sum_of_squares / (n - 1)) +
            old * ptac_channel_input(call, PTAC_BATCH_NORM_RUNNING_VAR, channel, 0));
}

/* Where element i of a channel lies. */
static int64_t place_of(const ptac_channel_norm *p, int64_t channel, int64_t i)
{
    return (i / p->n_pixels * p->n_channels + channel) * p->n_pixels + i % p->n_pixels;
}

/* The mean of a channel, and the sum of the squares of what is away from it. */
static double statistics(const ptac_channel_norm *p, const float *x, int64_t channel,
                         double *mean)
{
    const int64_t n = p->n_images * p->n_pixels;
    double sum = 0, squares = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[place_of(p, channel, i)];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        const double away = x[place_of(p, channel, i)] - *mean;

        squares += away * away;
    }
    return squares;
}

static void forward_channel(const ptac_call *call, int64_t c)
{
    const ptac_channel_norm *p = call->params;
    const float *x = call->inputs[PTAC_BATCH_NORM_X].data;
    const int64_t n = p->n_images * p->n_pixels;
    double mean = ptac_channel_input(call, PTAC_BATCH_NORM_RUNNING_MEAN, c, 0);
    const double variance = ptac_channel_input(call, PTAC_BATCH_NORM_RUNNING_VAR, c, 1);
    const ptac_act act = call->op == PTAC_OP_BATCH_NORM_ACT ? p->act : PTAC_ACT_NONE;
    double rstd = 1 / sqrt(variance + p->eps), left;
    ptac_normalization by;

    if (p->by_batch) {
        const double squares = statistics(p, x, c, &mean);

        rstd = ptac_batch_norm_rstd_of_batch(p, squares / (double)n);
        ptac_batch_norm_save(call, c, mean, squares, rstd);
    }
    by = ptac_batch_norm_by(call, c, mean, rstd);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place_of(p, c, i);

        ptac_channel_output(
            call, PTAC_BATCH_NORM_Y, at,
            ptac_act_value((x[at] - by.center) * by.scale + by.shift, act));
    }
    if (!p->by_batch || call->op != PTAC_OP_BATCH_NORM_ACT)
        return;
    left = (float)by.center - by.center;
    ptac_channel_output(call, PTAC_BATCH_NORM_SCALE, c, by.scale);
    ptac_channel_output(call, PTAC_BATCH_NORM_SHIFT, c,
                        left == 0 ? by.shift : by.shift + left * by.scale);
}

/* An element of y's gradient, before the activation. */
static double grad_at(const ptac_call *call, int64_t c, int64_t at)
{
    const ptac_channel_norm *p = call->params;
    const float *grad = call->inputs[PTAC_BATCH_NORM_GRAD_Y].data;
    const float *x = call->inputs[PTAC_BATCH_NORM_GRAD_X_OF].data;
    float away, z;

    if (call->op != PTAC_OP_BATCH_NORM_ACT_BACKWARD)
        return grad[at];
    away = x[at] - (float)ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_MEAN, c, 0);
    z = fmaf(away, (float)ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_SCALE, c, 1),
             (float)ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_SHIFT, c, 0));
    return ptac_act_gradient(grad[at], z, p->act);
}

static void backward_channel(const ptac_call *call, int64_t c)
{
    const ptac_channel_norm *p = call->params;
    const float *x = call->inputs[PTAC_BATCH_NORM_GRAD_X_OF].data;
    const int64_t n = p->n_images * p->n_pixels;
    const double weight =
        ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_WEIGHT_OF, c, 1);
    const double mean = ptac_channel_input(call, PTAC_BATCH_NORM_GRAD_MEAN, c, 0);
    const double rstd = ptac_batch_norm_rstd(call, c);
    double sum = 0, products = 0;

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place_of(p, c, i);
        const double grad = grad_at(call, c, at);

        sum += grad;
        products += grad * (x[at] - mean) * rstd;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place_of(p, c, i);
        const double grad = grad_at(call, c, at);
        const double shared = sum + (x[at] - mean) * rstd * products;

        ptac_channel_output(call, PTAC_BATCH_NORM_GRAD_X, at,
                            weight * rstd *
                                (p->by_batch ? grad - shared / (double)n : grad));
    }
    ptac_channel_output(call, PTAC_BATCH_NORM_GRAD_WEIGHT, c, products);
    ptac_channel_output(call, PTAC_BATCH_NORM_GRAD_BIAS, c, sum);
}

static ptac_status forward(const ptac_call *call)
{
    for (int64_t c = 0; c < ((const ptac_channel_norm *)call->params)->n_channels; c++)
        forward_channel(call, c);
    return PTAC_OK;
}

static ptac_status backward(const ptac_call *call)
{
    for (int64_t c = 0; c < ((const ptac_channel_norm *)call->params)->n_channels; c++)
        backward_channel(call, c);
    return PTAC_OK;
}

PTAC_ROW(BATCH_NORM, "scalar", PTAC_CLOSE, 0, ptac_accept_all, forward)
PTAC_ROW(BATCH_NORM_ACT, "scalar", PTAC_CLOSE, 0, ptac_accept_all, forward)
PTAC_ROW(BATCH_NORM_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, backward)
PTAC_ROW(BATCH_NORM_ACT_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, backward)
