/*
 * cross_entropy_backward_tpl.h - the gradient of rows, on the lanes named before.
 *
 * Every element of p is read before grad_x, which may lie in its place, is written.
 */
#include "ops/loss/cross_entropy.h"
#include "ops/loss/soft_target_tpl.h"

/* out[j] = p[j] * c, and less c where j is index, which is -1 for an ignored row. */
INLINE void plain_row(const float *p, int64_t n, float c, int64_t index, float *out)
{
    const vec factor = v_set(c);
    const float at_index = index < 0 ? 0 : __builtin_fmaf(p[index], c, -c);
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const vec a = v_mul(v_load(p + i), factor);
        const vec b = v_mul(v_load(p + i + LANES), factor);

        v_store(out + i, a);
        v_store(out + i + LANES, b);
    }
    for (; i < n; i += LANES) {
        const int rest = (int)least(n - i, LANES);

        v_store_first(out + i, v_mul(v_load_first(p + i, rest), factor), rest);
    }
    if (index >= 0)
        out[index] = at_index;
}

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
        double c = 0;

        if (index >= 0)
            c = ptac_cross_entropy_grad(job, row) * (weight ? weight[index] : 1);
        plain_row(p + row * n, n, (float)c, index, grad_x + row * n);
    }
}

TARGET static double soft_total(const ptac_row_target *target, int64_t n)
{
    double total = 0;

    if (!target->is_soft)
        return 0;
    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const int64_t end = least(n, begin + SUM_BLOCK);
        vec sum = v_zero();
        int64_t i = begin;

        for (; i + LANES <= end; i += LANES)
            sum = v_add(sum, soft_factors(target, i, LANES));
        if (i < end)
            sum = v_add(sum, soft_factors(target, i, (int)(end - i)));
        total += v_sum_f64(sum);
    }
    return total;
}

INLINE void soft_lanes(const ptac_row_target *target, vec of_u, const float *p,
                       vec of_p, int64_t i, int n, float *out)
{
    const vec of_class = v_mul(v_load_first(p + i, n), of_p);

    v_store_first(out + i, v_sub(of_class, v_mul(soft_factors(target, i, n), of_u)), n);
}

/*
 * p[j] * grad * (total + at_index) - grad * u[j], and less grad * at_index at index.
 * Each product is rounded, so that they cancel where p is 1 as stock's do.
 */
TARGET static void soft_row(const ptac_row_target *target, float grad, const float *p,
                            int64_t n, float *out)
{
    const float c = grad * (float)(soft_total(target, n) + target->at_index);
    const vec of_p = v_set(c), of_u = v_set(grad);
    float at_index = 0;
    int64_t i = 0;

    if (target->index >= 0) {
        const float u = target->shift * (target->w ? target->w[target->index] : 1);

        at_index = p[target->index] * c - grad * (float)(u + target->at_index);
    }
    for (; i + LANES <= n; i += LANES)
        soft_lanes(target, of_u, p, of_p, i, LANES, out);
    if (i < n)
        soft_lanes(target, of_u, p, of_p, i, (int)(n - i), out);
    if (target->index >= 0)
        out[target->index] = at_index;
}

TARGET static void soft_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_cross_entropy_job *job = context;
    const ptac_call *call = job->call;
    const int64_t n = ((const ptac_cross_entropy *)call->params)->n_classes;

    for (int64_t row = begin; row < end; row++) {
        const float *p =
            (const float *)call->inputs[PTAC_CROSS_ENTROPY_X].data + row * n;
        float *out = (float *)call->outputs[PTAC_CROSS_ENTROPY_GRAD_X].data + row * n;
        ptac_row_target target;
        float grad = 0;

        ptac_cross_entropy_target(call, row, &target);
        if (!target.is_ignored)
            grad = (float)ptac_cross_entropy_grad(job, row);
        soft_row(&target, grad, p, n, out);
    }
}

static ptac_reason accepts(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status run(const ptac_call *call)
{
    return ptac_cross_entropy_backward(
        call, ptac_cross_entropy_is_plain(call) ? plain_rows : soft_rows);
}
