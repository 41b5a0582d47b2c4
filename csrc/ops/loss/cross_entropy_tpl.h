/*
 * cross_entropy_tpl.h - losses and softmax of rows, and their gradient.
 *
 * Expects the words of lanes.h. Leaves cross_entropy(call) and
 * cross_entropy_backward(call), the run() of rows.
 */
#include "ops/loss/cross_entropy.h"
#include "ops/softmax/softmax_tpl.h"

/* Factors i to i + n - 1; zeros follow. */
INLINE vec soft_factors(const ptac_row_target *target, int64_t i, int n)
{
    vec u = v_set(target->shift);

    if (target->t)
        u = v_fma(v_load_first(target->t + i, n), v_set(target->scale), u);
    if (target->w)
        u = v_mul(u, v_load_first(target->w + i, n));
    return v_keep_first(u, v_zero(), n);
}

/* u[j] * l[j] of a row, where l[j] = x[j] - max - log_sum; u[j] where x is NULL. */
INLINE vec soft_terms(const ptac_row_target *target, const float *x, vec max,
                      vec log_sum, int64_t i, int n)
{
    const vec u = soft_factors(target, i, n);

    if (!x)
        return u;
    return v_keep_first(v_mul(u, v_sub(v_sub(v_load_first(x + i, n), max), log_sum)),
                        v_zero(), n);
}

INLINE double soft_sum(const ptac_row_target *target, const float *x, int64_t n,
                       float max, double log_sum)
{
    const vec top = v_set(max), log_of_sum = v_set((float)log_sum);
    double total = 0;

    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const int64_t end = ptac_least(n, begin + SUM_BLOCK);
        vec sum = v_zero();

        FOR_LANES(i, some, begin, end,
                  sum = v_add(sum, soft_terms(target, x, top, log_of_sum, i, some)));
        total += v_sum_f64(sum);
    }
    return total;
}

/* max and log_sum: the row's largest logit, and log(sum(exp(x - max))). */
TARGET static double loss_of_row(const ptac_call *call, int64_t row, const float *x,
                                 float max, double log_sum)
{
    const int64_t n = ((const ptac_cross_entropy *)call->params)->n_classes;
    ptac_row_target target;
    double loss = 0;

    ptac_cross_entropy_target(call, row, &target);
    if (target.is_ignored)
        return 0;
    if (target.index >= 0)
        loss = target.at_index * (log_sum + ((double)max - x[target.index]));
    if (target.is_soft)
        loss -= soft_sum(&target, x, n, max, log_sum);
    return loss;
}

TARGET static double long_rows(const ptac_call *call, int64_t begin, int64_t end)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t n = params->n_classes;
    float *losses = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    float *all_p = call->outputs[PTAC_CROSS_ENTROPY_P].data;
    double sum_of_losses = 0;

    for (int64_t row = begin; row < end; row++) {
        const float *x = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, n);
        float *p = all_p ? all_p + row * n : NULL;
        const float max = row_max(x, n);
        const vec top = v_set(max);
        const double sum = row_sum(x, n, &top, p);
        const double loss = loss_of_row(call, row, x, max, log(sum));

        if (p)
            row_multiply(p, n, (float)(1 / sum), p);
        if (params->reduction == PTAC_REDUCE_NONE)
            losses[row] = (float)loss;
        sum_of_losses += loss;
    }
    return sum_of_losses;
}

/* n <= LANES rows with plain targets; of a row x - max - log(sum(exp(x - max))). */
TARGET static double losses_of_block(const ptac_call *call, int64_t row, int n, vec max,
                                     vec log_sum)
{
    const ptac_cross_entropy *params = call->params;
    const int64_t width = params->n_classes;
    const float *x = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, width);
    const float *weight = call->inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;
    float *losses = call->outputs[PTAC_CROSS_ENTROPY_LOSS].data;
    float maxima[LANES], log_sums[LANES];
    double sum = 0;

    v_store(maxima, max);
    v_store(log_sums, log_sum);
    for (int i = 0; i < n; i++) {
        const int64_t index = ptac_cross_entropy_index(call, row + i);
        double loss = 0;

        if (index >= 0) {
            loss = (double)maxima[i] - x[i * width + index] + log_sums[i];
            if (weight)
                loss *= weight[index];
        }
        if (params->reduction == PTAC_REDUCE_NONE)
            losses[row + i] = (float)loss;
        sum += loss;
    }
    return sum;
}

TARGET static double short_rows(const ptac_call *call, int64_t begin, int64_t end)
{
    const int64_t width = ((const ptac_cross_entropy *)call->params)->n_classes;
    const float *x = call->inputs[PTAC_CROSS_ENTROPY_X].data;
    float *p = call->outputs[PTAC_CROSS_ENTROPY_P].data;
    vec columns[PTAC_SHORT_ROW];
    double sum_of_losses = 0;

    for (int64_t row = begin; row < end; row += LANES) {
        const int n = at_most_lanes(end - row);
        vec sum, max;

        load_columns(x + row * width, width, n, columns);
        max = columns_max(columns, width);
        columns_exp(columns, width, max, columns);
        sum = columns_sum(columns, width);
        sum_of_losses += losses_of_block(call, row, n, max, v_log(sum));
        if (p) {
            const vec inverse = v_div(v_set(1), sum);

            for (int64_t j = 0; j < width; j++)
                columns[j] = v_mul(columns[j], inverse);
            store_columns(p + row * width, width, n, columns);
        }
    }
    return sum_of_losses;
}

static ptac_status cross_entropy(const ptac_call *call)
{
    const ptac_cross_entropy *p = call->params;
    const bool is_short =
        p->n_classes <= PTAC_SHORT_ROW && ptac_cross_entropy_is_plain(call);

    return ptac_cross_entropy_forward(call, is_short ? short_rows : long_rows);
}

/* Backward: each element of p is read before grad_x, maybe in its place, is written. */

/* p[j] * c, and less c where j is the index. */
TARGET static void plain_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_cross_entropy_job *job = context;
    const ptac_call *call = job->call;
    const ptac_cross_entropy *params = call->params;
    const int64_t n = params->n_classes;
    const float *weight = call->inputs[PTAC_CROSS_ENTROPY_WEIGHT].data;
    const float *p = call->inputs[PTAC_CROSS_ENTROPY_X].data;
    float *grad_x = call->outputs[PTAC_CROSS_ENTROPY_GRAD_X].data;

    for (int64_t row = begin; row < end; row++) {
        const int64_t index = ptac_cross_entropy_index(call, row);
        float c = 0, at_index = 0;

        if (index >= 0) {
            c = (float)(ptac_cross_entropy_grad(job, row) *
                        (weight ? weight[index] : 1));
            at_index = __builtin_fmaf(p[row * n + index], c, -c);
        }
        row_multiply(p + row * n, n, c, grad_x + row * n);
        if (index >= 0)
            grad_x[row * n + index] = at_index;
    }
}

/*
 * p[j] * grad * (total + at_index) - grad * u[j], and less grad * at_index at index.
 * Each product is rounded, so that they cancel where p is 1 as stock's do.
 */
TARGET static void soft_row(const ptac_row_target *target, float grad, const float *p,
                            int64_t n, float *out)
{
    const double total = target->is_soft ? soft_sum(target, NULL, n, 0, 0) : 0;
    const float c = grad * (float)(total + target->at_index);
    const vec of_p = v_set(c), of_u = v_set(grad);
    float at_index = 0;

    if (target->index >= 0) {
        const float u = target->shift * (target->w ? target->w[target->index] : 1);

        at_index = p[target->index] * c - grad * (float)(u + target->at_index);
    }
    FOR_LANES(i, some, 0, n,
              v_store_first(out + i,
                            v_sub(v_mul(v_load_first(p + i, some), of_p),
                                  v_mul(soft_factors(target, i, some), of_u)),
                            some));
    if (target->index >= 0)
        out[target->index] = at_index;
}

TARGET static void soft_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_cross_entropy_job *job = context;
    const ptac_call *call = job->call;
    const int64_t n = ((const ptac_cross_entropy *)call->params)->n_classes;

    for (int64_t row = begin; row < end; row++) {
        const float *p = ptac_row(&call->inputs[PTAC_CROSS_ENTROPY_X], row, n);
        float *out = ptac_row(&call->outputs[PTAC_CROSS_ENTROPY_GRAD_X], row, n);
        ptac_row_target target;
        float grad = 0;

        ptac_cross_entropy_target(call, row, &target);
        if (!target.is_ignored)
            grad = (float)ptac_cross_entropy_grad(job, row);
        soft_row(&target, grad, p, n, out);
    }
}

static ptac_status cross_entropy_backward(const ptac_call *call)
{
    return ptac_cross_entropy_backward(
        call, ptac_cross_entropy_is_plain(call) ? plain_rows : soft_rows);
}
