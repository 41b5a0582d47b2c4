/*
 * losses_ref.c - losses and their gradients by their definitions, in double; how their
 * calls are shared out, and their shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them.
 */
#include "ops/loss/losses.h"

#include "core/scratch.h"

#include <math.h>

/* "each" is as long as x, the others are one number. */
static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_loss *p = call->params;
    const ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = p->reduction != PTAC_LOSS_EACH;
    return why;
}

static ptac_reason classify_gradient(const ptac_call *call, ptac_shape *shape)
{
    ptac_reason why = ptac_classify_elements(call, shape);

    shape->kind = call->inputs[PTAC_LOSS_GRAD].n_elements == 1;
    shape->work = call->inputs[PTAC_LOSS_GRAD_X].n_elements;
    return why;
}

PTAC_SHAPES(MSE_LOSS, classify, "each", "sum")
PTAC_SHAPES(SMOOTH_L1_LOSS, classify, "each", "sum")
PTAC_SHAPES(BINARY_CROSS_ENTROPY, classify, "each", "sum")
PTAC_SHAPES(BINARY_CROSS_ENTROPY_WITH_LOGITS, classify, "each", "sum")
PTAC_SHAPES(MSE_LOSS_BACKWARD, classify_gradient, "each", "sum")
PTAC_SHAPES(SMOOTH_L1_LOSS_BACKWARD, classify_gradient, "each", "sum")
PTAC_SHAPES(BINARY_CROSS_ENTROPY_BACKWARD, classify_gradient, "each", "sum")

ptac_reason ptac_loss_accepts(const ptac_call *call)
{
    return call->inputs[0].dtype == PTAC_F32 ? PTAC_TAKE : PTAC_DTYPE;
}

static ptac_status reduce(ptac_loss_work *work, ptac_range_fn blocks)
{
    const ptac_call *call = work->call;
    const ptac_loss *p = call->params;
    const int64_t n = call->inputs[PTAC_LOSS_X].n_elements;
    const int64_t n_blocks = (n + PTAC_LOSS_BLOCK - 1) / PTAC_LOSS_BLOCK;
    double few[64], sum = 0;

    work->sums =
        n_blocks <= 64 ? few : ptac_scratch_take((size_t)n_blocks * sizeof *few);
    if (!work->sums)
        return PTAC_NO_MEMORY;
    ptac_parallel_for(0, n_blocks, PTAC_LOSS_SHARE / PTAC_LOSS_BLOCK, blocks, work);
    for (int64_t i = 0; i < n_blocks; i++)
        sum += work->sums[i];
    if (work->sums != few)
        ptac_scratch_give(work->sums);
    if (p->reduction == PTAC_LOSS_MEAN)
        sum /= (double)n;
    *(float *)call->outputs[0].data = (float)sum;
    return PTAC_OK;
}

ptac_status ptac_loss_run(const ptac_call *call, ptac_range_fn each,
                          ptac_range_fn blocks)
{
    const ptac_loss *p = call->params;
    ptac_loss_work work = {call, NULL, false};
    ptac_status status = PTAC_OK;

    if (p->reduction == PTAC_LOSS_EACH)
        ptac_parallel_for(0, call->inputs[PTAC_LOSS_X].n_elements, PTAC_LOSS_SHARE,
                          each, &work);
    else
        status = reduce(&work, blocks);
    return work.is_outside ? PTAC_UNSUITED : status;
}

static double mse_of(double x, double t, const ptac_loss *p)
{
    (void)p;
    return (x - t) * (x - t);
}

static double smooth_l1_of(double x, double t, const ptac_loss *p)
{
    const double away = fabs(x - t);

    return away >= p->beta ? away - 0.5 * p->beta : 0.5 * away * away / p->beta;
}

static double bce_of(double x, double t, const ptac_loss *p)
{
    (void)p;
    return (t - 1) * fmax(log1p(-x), -100) - t * fmax(log(x), -100);
}

static double logits_of(double x, double t, const ptac_loss *p)
{
    const double below = x < 0 || isnan(x) ? x : 0;

    (void)p;
    return (1 - t) * x - (below - log1p(exp(-fabs(x))));
}

static bool is_outside(const ptac_call *call, float x, float t)
{
    return call->op == PTAC_OP_BINARY_CROSS_ENTROPY &&
           !(x >= 0 && x <= 1 && t >= 0 && t <= 1);
}

#define LOSS(name)                                                                     \
    static double name##_at(ptac_loss_work *work, int64_t i)                           \
    {                                                                                  \
        const ptac_call *call = work->call;                                            \
        const float x = ((const float *)call->inputs[PTAC_LOSS_X].data)[i];            \
        const float t = ((const float *)call->inputs[PTAC_LOSS_TARGET].data)[i];       \
                                                                                       \
        if (is_outside(call, x, t))                                                    \
            __atomic_store_n(&work->is_outside, true, __ATOMIC_RELAXED);               \
        return name##_of(x, t, call->params);                                          \
    }                                                                                  \
    static void name##_each(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        ptac_loss_work *work = context;                                                \
        float *y = work->call->outputs[0].data;                                        \
                                                                                       \
        for (int64_t i = begin; i < end; i++)                                          \
            y[i] = (float)name##_at(work, i);                                          \
    }                                                                                  \
    static void name##_blocks(int64_t begin, int64_t end, void *context)               \
    {                                                                                  \
        ptac_loss_work *work = context;                                                \
                                                                                       \
        for (int64_t block = begin; block < end; block++) {                            \
            const int64_t block_end = ptac_loss_block_end(work->call, block);          \
            double sum = 0;                                                            \
                                                                                       \
            for (int64_t i = block * PTAC_LOSS_BLOCK; i < block_end; i++)              \
                sum += name##_at(work, i);                                             \
            work->sums[block] = sum;                                                   \
        }                                                                              \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return ptac_loss_run(call, name##_each, name##_blocks);                        \
    }

LOSS(mse)
LOSS(smooth_l1)
LOSS(bce)
LOSS(logits)

/* In ATen's steps: the row is exact. */
static double mse_slope(float grad, float x, float t, const ptac_call *call)
{
    const float factor = (float)(2 * ptac_loss_norm(call));

    return factor * (x - t) * grad;
}

static double smooth_l1_slope(float grad, float x, float t, const ptac_call *call)
{
    const ptac_loss *p = call->params;
    const double away = (double)x - t, sign = away > 0 ? 1 : -1;
    const double slope = fabs(away) >= p->beta ? sign : away / p->beta;

    return ptac_loss_norm(call) * slope * grad;
}

static double bce_slope(float grad, float x, float t, const ptac_call *call)
{
    const double product = (1 - (double)x) * x;

    return grad * ((double)x - t) / (product < 1e-12 ? 1e-12 : product) *
           ptac_loss_norm(call);
}

#define GRADIENT(name)                                                                 \
    static void name##_slopes(int64_t begin, int64_t end, void *context)               \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *x = call->inputs[PTAC_LOSS_GRAD_X].data;                          \
        const float *t = call->inputs[PTAC_LOSS_GRAD_TARGET].data;                     \
        float *of_x = call->outputs[0].data;                                           \
                                                                                       \
        for (int64_t i = begin; i < end; i++)                                          \
            of_x[i] = (float)name##_slope(ptac_loss_grad(call, i), x[i], t[i], call);  \
    }                                                                                  \
    static ptac_status run_##name##_slope(const ptac_call *call)                       \
    {                                                                                  \
        return ptac_loss_gradients(call, name##_slopes);                               \
    }

GRADIENT(mse)
GRADIENT(smooth_l1)
GRADIENT(bce)

#define SCALAR(id, level, run) PTAC_ROW(id, "scalar", level, 0, ptac_loss_accepts, run)
SCALAR(MSE_LOSS, PTAC_CLOSE, run_mse)
SCALAR(SMOOTH_L1_LOSS, PTAC_CLOSE, run_smooth_l1)
SCALAR(BINARY_CROSS_ENTROPY, PTAC_CLOSE, run_bce)
SCALAR(BINARY_CROSS_ENTROPY_WITH_LOGITS, PTAC_CLOSE, run_logits)
SCALAR(MSE_LOSS_BACKWARD, PTAC_EXACT, run_mse_slope)
SCALAR(SMOOTH_L1_LOSS_BACKWARD, PTAC_CLOSE, run_smooth_l1_slope)
SCALAR(BINARY_CROSS_ENTROPY_BACKWARD, PTAC_CLOSE, run_bce_slope)
