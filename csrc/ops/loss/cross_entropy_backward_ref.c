/*
 * cross_entropy_backward_ref.c - the gradient of cross-entropy by its definition.
 *
 * With u and at_index as in ptac_row_target and g the gradient of the row's loss it is
 * p[j] * g * (sum(u) + at_index) - g * (u[j] + (j == index ? at_index : 0)).
 */
#include "ops/loss/cross_entropy.h"

static const ptac_op_shapes shapes = {
    .op = PTAC_OP_CROSS_ENTROPY_BACKWARD,
    .kinds = {"short", "long", "probabilities"},
    .classify = ptac_cross_entropy_classify,
};
PTAC_REGISTER_SHAPES(shapes)

static double factor(const ptac_row_target *target, int64_t i)
{
    const double u = target->t ? (double)target->t[i] * target->scale + target->shift
                               : target->shift;

    if (!target->is_soft)
        return 0;
    return u * (target->w ? target->w[i] : 1);
}

static void rows(int64_t begin, int64_t end, void *context)
{
    const ptac_cross_entropy_job *job = context;
    const ptac_call *call = job->call;
    const int64_t n = ((const ptac_cross_entropy *)call->params)->n_classes;

    for (int64_t row = begin; row < end; row++) {
        const float *p =
            (const float *)call->inputs[PTAC_CROSS_ENTROPY_X].data + row * n;
        float *grad_x =
            (float *)call->outputs[PTAC_CROSS_ENTROPY_GRAD_X].data + row * n;
        ptac_row_target target;
        double grad = ptac_cross_entropy_grad(job, row), total;

        ptac_cross_entropy_target(call, row, &target);
        if (target.is_ignored)
            grad = 0;
        total = target.at_index;
        for (int64_t i = 0; i < n; i++)
            total += factor(&target, i);
        for (int64_t i = 0; i < n; i++) {
            double of_class = p[i] * (grad * total);

            if (target.is_soft || i == target.index)
                of_class -= grad * (factor(&target, i) +
                                    (i == target.index ? target.at_index : 0));
            grad_x[i] = (float)of_class;
        }
    }
}

static ptac_reason accepts(const ptac_call *call)
{
    (void)call;
    return PTAC_TAKE;
}

static ptac_status run(const ptac_call *call)
{
    return ptac_cross_entropy_backward(call, rows);
}

static const ptac_kernel cross_entropy_backward_scalar = {
    .op = PTAC_OP_CROSS_ENTROPY_BACKWARD,
    .name = "scalar",
    .level = PTAC_CLOSE,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(cross_entropy_backward_scalar)
