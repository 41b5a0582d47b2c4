/*
 * cross_entropy_ref.c - cross-entropy and its gradient by their definitions, in double.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/loss/cross_entropy.h"

#include <math.h>

/* u[i] of a target; 0 where it has none. */
static double factor(const ptac_row_target *target, int64_t i)
{
    const double u = target->t ? (double)target->t[i] * target->scale + target->shift
                               : target->shift;

    if (!target->is_soft)
        return 0;
    return u * (target->w ? target->w[i] : 1);
}

static double row_loss(const ptac_row_target *target, const float *x, int64_t n,
                       double max, double log_of_sum)
{
    double loss = 0;

    if (target->is_ignored)
        return 0;
    if (target->index >= 0)
        loss -= target->at_index * (x[target->index] - max - log_of_sum);
    for (int64_t i = 0; target->is_soft && i < n; i++)
        loss -= (x[i] - max - log_of_sum) * factor(target, i);
    return loss;
}

/* What a row's logarithms are multiplied with, all together. */
static double sum_of_factors(const ptac_row_target *target, int64_t n)
{
    double sum = target->at_index;

    for (int64_t i = 0; target->is_soft && i < n; i++)
        sum += factor(target, i);
    return sum;
}

/* p of a row, or what is saved in its place. */
static void save_row(const ptac_call *call, int64_t row, const ptac_row_target *target,
                     double max, double log_of_sum)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t n = params->n_classes, n_rows = params->n_rows;
    const float *x = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, n);
    float *p = call->outputs[PTAC_CROSS_ENTROPY_P].data;

    if (params->saves_log_sum) {
        p[row] = isnan(log_of_sum) ? NAN : (float)max;
        p[n_rows + row] = (float)log_of_sum;
        p[2 * n_rows + row] = (float)sum_of_factors(target, n);
    } else {
        for (int64_t i = 0; p && i < n; i++)
            p[row * n + i] = (float)exp(x[i] - max - log_of_sum);
    }
}

static double cross_entropy_rows(const ptac_call *call, int64_t begin, int64_t end)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t n = params->n_classes;
    float *loss = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    double sum = 0;

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, n);
        ptac_row_target target;
        double max;
        const double log_of_sum = ptac_log_sum(x, n, &max);

        ptac_cross_entropy_target(call, row, &target);
        save_row(call, row, &target, max, log_of_sum);

        const double of_row = row_loss(&target, x, n, max, log_of_sum);

        if (params->reduction == PTAC_REDUCE_NONE)
            loss[row] = (float)of_row;
        sum += of_row;
    }
    return sum;
}

/*
 * With u and at_index as in ptac_row_target and g the gradient of the row's loss it is
 * p[j] * g * (sum(u) + at_index) - g * (u[j] + (j == index ? at_index : 0)).
 */
static void cross_entropy_gradients(int64_t begin, int64_t end, void *context)
{
    const ptac_cross_entropy_job *job = context;
    const ptac_call *call = job->call;
    const ptac_cross_entropy *params = call->params;
    const float *saved = call->inputs[PTAC_CROSS_ENTROPY_SAVED_BEFORE].data;
    const int64_t n = params->n_classes;

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, n);
        float *grad_x = ptac_row(&call->outputs[PTAC_CROSS_ENTROPY_GRAD_X], row, n);
        ptac_row_target target;
        double grad = ptac_cross_entropy_grad(job, row), total;

        ptac_cross_entropy_target(call, row, &target);
        if (target.is_ignored)
            grad = 0;
        total = sum_of_factors(&target, n);
        for (int64_t i = 0; i < n; i++) {
            const double p =
                params->saves_log_sum
                    ? exp((double)x[i] - saved[row] - saved[params->n_rows + row])
                    : x[i];
            double of_class = p * (grad * total);

            if (target.is_soft || i == target.index)
                of_class -= grad * (factor(&target, i) +
                                    (i == target.index ? target.at_index : 0));
            grad_x[i] = (float)of_class;
        }
    }
}

static ptac_status cross_entropy(const ptac_call *call)
{
    return ptac_cross_entropy_forward(call, cross_entropy_rows);
}

static ptac_status cross_entropy_backward(const ptac_call *call)
{
    return ptac_cross_entropy_backward(call, cross_entropy_gradients);
}

PTAC_CROSS_ENTROPY_ROWS("scalar", 0, ptac_accept_all)
