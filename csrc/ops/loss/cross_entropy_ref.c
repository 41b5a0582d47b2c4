/*
 * cross_entropy_ref.c - cross-entropy by its definition, in double, and its shape
 * kinds.
 *
 * The row "scalar" runs on any CPU; every other row is tested against it.
 */
#include "ops/loss/cross_entropy.h"

#include <math.h>

static const ptac_op_shapes shapes = {
    .op = PTAC_OP_CROSS_ENTROPY,
    .kinds = {"short", "long", "probabilities"},
    .classify = ptac_cross_entropy_classify,
};
PTAC_REGISTER_SHAPES(shapes)

/* The logarithm of the sum of exp(x[i]), less *max. */
static double log_sum(const float *x, int64_t n, double *max)
{
    double sum = 0;

    *max = x[0];
    for (int64_t i = 1; i < n; i++)
        *max = x[i] > *max ? x[i] : *max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - *max);
    return log(sum);
}

static double row_loss(const ptac_row_target *target, const float *x, int64_t n,
                       double max, double log_of_sum)
{
    double loss = 0;

    if (target->is_ignored)
        return 0;
    if (target->index >= 0)
        loss -= target->at_index * (x[target->index] - max - log_of_sum);
    for (int64_t i = 0; target->is_soft && i < n; i++) {
        const double u = target->t
                             ? (double)target->t[i] * target->scale + target->shift
                             : target->shift;

        loss -= (x[i] - max - log_of_sum) * u * (target->w ? target->w[i] : 1);
    }
    return loss;
}

static double rows(const ptac_call *call, int64_t begin, int64_t end)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t n = params->n_classes;
    float *loss = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    float *p = call->outputs[PTAC_CROSS_ENTROPY_P].data;
    double sum = 0;

    for (int64_t row = begin; row < end; row++) {
        const float *x =
            (const float *)call->inputs[PTAC_CROSS_ENTROPY_X].data + row * n;
        ptac_row_target target;
        double max;
        const double log_of_sum = log_sum(x, n, &max);

        for (int64_t i = 0; p && i < n; i++)
            p[row * n + i] = (float)exp(x[i] - max - log_of_sum);
        ptac_cross_entropy_target(call, row, &target);

        const double of_row = row_loss(&target, x, n, max, log_of_sum);

        if (params->reduction == PTAC_REDUCE_NONE)
            loss[row] = (float)of_row;
        sum += of_row;
    }
    return sum;
}

static ptac_reason accepts(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status run(const ptac_call *call)
{
    return ptac_cross_entropy_forward(call, rows);
}

static const ptac_kernel cross_entropy_scalar = {
    .op = PTAC_OP_CROSS_ENTROPY,
    .name = "scalar",
    .level = PTAC_CLOSE,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(cross_entropy_scalar)
