/*
 * bias_act_ref.c - bias, activation and their gradient by their definitions, in double.
 *
 * Runs on any CPU; the other rows are tested against it.
 */
#include "ops/linear/bias_act.h"

#include <math.h>

/* u(z) = sqrt(2 / pi) * (z + 0.044715 z^3), as in ATen's gelu(approximate="tanh"). */
static double gelu_tanh_inner(double z)
{
    return sqrt(M_2_PI) * (z + 0.044715 * z * z * z);
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

double ptac_act_value(double z, ptac_act act)
{
    switch (act) {
    case PTAC_ACT_RELU:
        return z < 0 ? 0 : z;
    case PTAC_ACT_GELU:
        return z * 0.5 * erfc(-z * M_SQRT1_2);
    case PTAC_ACT_GELU_TANH:
        return z * sigmoid(2 * gelu_tanh_inner(z));
    case PTAC_ACT_SILU:
        return z * sigmoid(z);
    case PTAC_ACT_TANH:
        return tanh(z);
    case PTAC_ACT_SIGMOID:
        return sigmoid(z);
    case PTAC_ACT_RELU6:
        return z < 0 ? 0 : z > 6 ? 6 : z;
    case PTAC_ACT_HARDSWISH:
        return z * (z < -3 ? 0 : z > 3 ? 6 : z + 3) / 6;
    default:
        return z;
    }
}

/* The gradient of g through act; saved is what ptac_act_saves_z() says. */
double ptac_act_gradient(double g, double saved, ptac_act act)
{
    const double x = saved;
    double s;

    switch (act) {
    case PTAC_ACT_RELU:
        return x <= 0 ? 0 : g;
    case PTAC_ACT_GELU:
        s = 0.5 * erfc(-x * M_SQRT1_2);
        return g * (s + x * exp(-0.5 * x * x) / sqrt(2 * M_PI));
    case PTAC_ACT_GELU_TANH:
        s = sigmoid(2 * gelu_tanh_inner(x));
        return g *
               (s + x * s * (1 - s) * 2 * sqrt(M_2_PI) * (1 + 3 * 0.044715 * x * x));
    case PTAC_ACT_SILU:
        s = sigmoid(x);
        return g * (s + x * s * (1 - s));
    case PTAC_ACT_TANH:
        return g * (1 - x * x);
    case PTAC_ACT_SIGMOID:
        return g * (1 - x) * x;
    case PTAC_ACT_RELU6:
        return x > 0 && x < 6 ? g : 0;
    case PTAC_ACT_HARDSWISH:
        return x <= -3 ? 0 : x >= 3 ? g : g * (x / 3 + 0.5);
    default:
        return g;
    }
}

static void forward_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_act_forward *job = context;

    for (int64_t i = begin; i < end; i++) {
        float *z = job->z + i * job->ldz, *y = job->y + i * job->ldy;

        for (int64_t j = 0; j < job->n_cols; j++) {
            const float sum = job->bias ? z[j] + job->bias[j] : z[j];

            if (job->keep_z)
                z[j] = sum;
            y[j] = (float)ptac_act_value(sum, job->act);
        }
    }
}

static float grad_of(const ptac_act_backward *job, int64_t at)
{
    const bool is_none = job->act == PTAC_ACT_NONE;
    const double saved = is_none ? 0 : job->saved[at];
    const float grad = (float)ptac_act_gradient(job->g[at], saved, job->act);

    if (job->gz)
        job->gz[at] = grad;
    return grad;
}

static void elements(int64_t begin, int64_t end, void *context)
{
    for (int64_t at = begin; at < end; at++)
        grad_of(context, at);
}

static void sum_piece(const ptac_act_piece *piece, double sums[PTAC_ACT_PANEL])
{
    const int64_t n_cols = piece->job->n_cols;

    for (int j = 0; j < piece->n_columns; j++)
        sums[j] = 0;
    for (int64_t i = piece->row; i < piece->last_row; i++)
        for (int j = 0; j < piece->n_columns; j++)
            sums[j] += grad_of(piece->job, i * n_cols + piece->column + j);
}

#define EACH_ACT(function)                                                             \
    {                                                                                  \
        [0 ... PTAC_N_ACTS - 1] = function                                             \
    }

const ptac_bias_act ptac_bias_act_scalar = {"scalar", EACH_ACT(forward_rows),
                                            EACH_ACT(elements), EACH_ACT(sum_piece)};
