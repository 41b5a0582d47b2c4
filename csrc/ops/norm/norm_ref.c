/*
 * norm_ref.c - LayerNorm, RMSNorm and their gradients by their definitions, in double,
 * and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/norm/norm.h"

#include <math.h>

enum {
    SHORT_ROW = 1024, /* elements of a row that a warp takes; "long" has more */
    TRAINED = 2,      /* added to the kind of RMSNorm and add_norm with a gradient */
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_norm *params = call->params;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (dtype != PTAC_F32 && dtype != PTAC_BF16 && dtype != PTAC_F16)
        return PTAC_DTYPE;
    if (params->n_rows == 0 || params->width == 0)
        return PTAC_EMPTY;
    shape->kind = (params->width > SHORT_ROW) + (params->is_trained ? TRAINED : 0);
    shape->work = params->n_rows * params->width;
    return PTAC_TAKE;
}

PTAC_SHAPES(LAYER_NORM, classify, "short", "long")
PTAC_SHAPES(LAYER_NORM_BACKWARD, classify, "short", "long")
PTAC_SHAPES(RMS_NORM, classify, "short", "long", "train_short", "train_long")
PTAC_SHAPES(RMS_NORM_BACKWARD, classify, "short", "long")
PTAC_SHAPES(ADD_NORM, classify, "short", "long", "train_short", "train_long")
PTAC_SHAPES_OF(ADD_NORM_BACKWARD, classify, 0, true, "short", "long")

static ptac_reason accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

/* Element i of a tensor; what stands for it where the call does without. */
static double element(const ptac_view *view, int64_t i, double otherwise)
{
    const float *data = view->data;

    return data ? (double)data[i] : otherwise;
}

static void put(const ptac_view *view, int64_t i, double value)
{
    float *data = view->data;

    if (data)
        data[i] = (float)value;
}

double ptac_norm_statistics(const ptac_norm *params, const float *x, double *mean)
{
    const int64_t n = params->width;
    double sum = 0, squares = 0;

    for (int64_t i = 0; i < n && !params->is_rms; i++)
        sum += x[i];
    *mean = isfinite(sum) ? sum / (double)n : NAN; /* as stock's, whose update it is */
    for (int64_t i = 0; i < n; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    return 1 / sqrt(squares / (double)n + params->eps);
}

static void forward_row(const ptac_call *call, int64_t row)
{
    const ptac_norm *params = call->params;
    const ptac_view *in = call->inputs, *out = call->outputs;
    const int64_t n = params->width, begin = row * n;
    const float *x = (const float *)in[PTAC_NORM_X].data + begin;
    double mean, rstd;

    if (in[PTAC_NORM_RESIDUAL].data) {
        const float *residual = (const float *)in[PTAC_NORM_RESIDUAL].data + begin;
        float *sum = (float *)out[PTAC_NORM_SUM].data + begin;

        for (int64_t i = 0; i < n; i++)
            sum[i] = x[i] + residual[i];
        x = sum;
    }
    rstd = ptac_norm_statistics(params, x, &mean);
    for (int64_t i = 0; i < n; i++)
        put(&out[PTAC_NORM_Y], begin + i,
            (x[i] - mean) * rstd * element(&in[PTAC_NORM_WEIGHT], i, 1) +
                element(&in[PTAC_NORM_BIAS], i, 0));
    put(&out[PTAC_NORM_RSTD], row, rstd);
    if (!params->is_rms)
        put(&out[PTAC_NORM_MEAN], row, mean);
}

static ptac_status forward(const ptac_call *call)
{
    for (int64_t row = 0; row < ((const ptac_norm *)call->params)->n_rows; row++)
        forward_row(call, row);
    return PTAC_OK;
}

/* x^ of norm.h, element i of a row. */
static double normalized(const ptac_call *call, int64_t row, int64_t i)
{
    const ptac_norm *params = call->params;
    const ptac_view *in = call->inputs;
    const double x = element(&in[PTAC_NORM_GRAD_X_OF], row * params->width + i, 0);
    const double mean = element(&in[PTAC_NORM_GRAD_MEAN], row, 0);

    return (params->is_rms ? x : x - mean) * element(&in[PTAC_NORM_GRAD_RSTD], row, 1);
}

static void backward_row(const ptac_call *call, int64_t row)
{
    const ptac_norm *params = call->params;
    const ptac_view *in = call->inputs;
    const int64_t n = params->width, begin = row * n;
    double sum = 0, sum_of_products = 0;

    for (int64_t i = 0; i < n; i++) {
        const double grad = element(&in[PTAC_NORM_GRAD_Y], begin + i, 0) *
                            element(&in[PTAC_NORM_GRAD_WEIGHT_OF], i, 1);

        sum += params->is_rms ? 0 : grad;
        sum_of_products += grad * normalized(call, row, i);
    }
    for (int64_t i = 0; i < n; i++) {
        const double grad = element(&in[PTAC_NORM_GRAD_Y], begin + i, 0) *
                            element(&in[PTAC_NORM_GRAD_WEIGHT_OF], i, 1);
        const double shared =
            (sum + normalized(call, row, i) * sum_of_products) / (double)n;

        put(&call->outputs[PTAC_NORM_GRAD_X], begin + i,
            (grad - shared) * element(&in[PTAC_NORM_GRAD_RSTD], row, 1) +
                element(&in[PTAC_NORM_GRAD_SUM], begin + i, 0));
    }
}

static ptac_status backward(const ptac_call *call)
{
    const ptac_norm *params = call->params;

    for (int64_t row = 0; row < params->n_rows; row++)
        backward_row(call, row);
    for (int64_t i = 0; i < params->width; i++) {
        double of_weight = 0, of_bias = 0;

        for (int64_t row = 0; row < params->n_rows; row++) {
            const double grad =
                element(&call->inputs[PTAC_NORM_GRAD_Y], row * params->width + i, 0);

            of_weight += grad * normalized(call, row, i);
            of_bias += grad;
        }
        put(&call->outputs[PTAC_NORM_GRAD_WEIGHT], i, of_weight);
        put(&call->outputs[PTAC_NORM_GRAD_BIAS], i, of_bias);
    }
    return PTAC_OK;
}

#define SCALAR(op, computes) PTAC_ROW(op, "scalar", PTAC_CLOSE, 0, accepts, computes)
SCALAR(LAYER_NORM, forward)
SCALAR(LAYER_NORM_BACKWARD, backward)
SCALAR(RMS_NORM, forward)
SCALAR(RMS_NORM_BACKWARD, backward)
SCALAR(ADD_NORM, forward)
SCALAR(ADD_NORM_BACKWARD, backward)
