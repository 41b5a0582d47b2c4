/*
 * batch_norm_eval_tpl.h - batch normalization by running statistics, and the activation
 * behind it, in one pass. The result may lie on x.
 *
 * Expects the words of lanes.h. Leaves by_running(call, act), and fold_all_sums(), a
 * ptac_batch_norm_fold_fn.
 */
#include "core/scratch.h"
#include "ops/linear/act_tpl.h"
#include "ops/norm/batch_norm_fold.h"
#include "ops/norm/batch_norm_run.h"

#include <float.h>

enum {
    WORTH_A_THREAD = 8192, /* elements */
};

/* Lines that one number of a channel goes for, or of columns that have one each. */
typedef struct eval_job {
    int64_t n_columns, n_pixels; /* of a line: either is 1 */
    int64_t n_alike;             /* columns of a channel, one behind the other */
    int64_t n_lines, n_channels;
    const float *x;
    float *y;
    /* Of each column, or of each channel: y = scale * (x - center) + shift. */
    float *center, *scale, *shift;
} eval_job;

INLINE void normalize(const float *x, float *y, vec center, vec scale, vec shift, int n,
                      ptac_act act)
{
    const vec away = v_sub(v_load_first(x, n), center);

    v_store_first(y, act_of(v_fma(away, scale, shift), act), n);
}

INLINE void normalize_lines(const eval_job *job, int64_t begin, int64_t end,
                            ptac_act act)
{
    for (int64_t i = begin; i < end; i++) {
        const int64_t at = i * job->n_columns * job->n_pixels;
        const float *x = job->x + at;
        float *y = job->y + at;

        if (job->n_columns > 1) {
            FOR_LANES(k, n, 0, job->n_columns,
                      normalize(x + k, y + k, v_load_first(job->center + k, n),
                                v_load_first(job->scale + k, n),
                                v_load_first(job->shift + k, n), n, act));
        } else {
            const int64_t c = i % job->n_channels;
            const vec center = v_set(job->center[c]), scale = v_set(job->scale[c]),
                      shift = v_set(job->shift[c]);

            FOR_LANES(k, n, 0, job->n_pixels,
                      normalize(x + k, y + k, center, scale, shift, n, act));
        }
    }
}

#define DEFINE_LINES(name, act)                                                        \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        normalize_lines(context, begin, end, act);                                     \
    }

DEFINE_LINES(normalize_alone, PTAC_ACT_NONE)
DEFINE_LINES(normalize_relu, PTAC_ACT_RELU)
DEFINE_LINES(normalize_relu6, PTAC_ACT_RELU6)
DEFINE_LINES(normalize_silu, PTAC_ACT_SILU)
DEFINE_LINES(normalize_hardswish, PTAC_ACT_HARDSWISH)

static ptac_range_fn normalize_by(ptac_act act)
{
    switch (act) {
    case PTAC_ACT_NONE:
        return normalize_alone;
    case PTAC_ACT_RELU:
        return normalize_relu;
    case PTAC_ACT_RELU6:
        return normalize_relu6;
    case PTAC_ACT_SILU:
        return normalize_silu;
    case PTAC_ACT_HARDSWISH:
        return normalize_hardswish;
    default:
        return NULL;
    }
}

/* Of n channels, those without one having 1 or 0. */
INLINE vec scale_of(const float *weight, const float *variance, double eps, int n)
{
    const vec spread = PS(sqrt)(v_add(v_load_first(variance, n), v_set((float)eps)));

    return v_div(weight ? v_load_first(weight, n) : v_set(1), spread);
}

INLINE vec number_or_zero(const float *numbers, int64_t c, int n)
{
    return numbers ? v_load_first(numbers + c, n) : v_zero();
}

/*
 * n channels from c on. Stock computes scale * x + offset: where the offset is not
 * finite, as for a scale that is not, this says which results are infinite and which
 * NaN.
 */
INLINE void fold(const ptac_call *call, eval_job *job, int64_t c, int n)
{
    const float *weight = call->inputs[PTAC_BATCH_NORM_WEIGHT].data,
                *mean = call->inputs[PTAC_BATCH_NORM_RUNNING_MEAN].data,
                *variance = call->inputs[PTAC_BATCH_NORM_RUNNING_VAR].data;
    const vec scale = scale_of(weight ? weight + c : NULL, variance + c,
                               ((const ptac_channel_norm *)call->params)->eps, n);
    const vec center = v_load_first(mean + c, n);
    const vec shift = number_or_zero(call->inputs[PTAC_BATCH_NORM_BIAS].data, c, n);
    const vec offset = v_fnma(center, scale, shift);
    const mask is_usual = v_at_most(v_abs(offset), v_set(FLT_MAX));

    v_store_first(job->center + c, v_pick(is_usual, center, v_zero()), n);
    v_store_first(job->scale + c, scale, n);
    v_store_first(job->shift + c, v_pick(is_usual, shift, offset), n);
}

/* The same of a convolution's sums. */
INLINE void fold_sums(const ptac_batch_norm *norm, const float *bias, int64_t c, int n,
                      float *scale, float *shift)
{
    const vec by = scale_of(norm->weight ? norm->weight + c : NULL, norm->variance + c,
                            norm->eps, n);
    const vec away = v_sub(number_or_zero(bias, c, n), v_load_first(norm->mean + c, n));

    v_store_first(scale + c, by, n);
    v_store_first(shift + c, v_fma(away, by, number_or_zero(norm->bias, c, n)), n);
}

TARGET static void fold_all_sums(const ptac_batch_norm *norm, const float *bias,
                                 int64_t n_channels, float *scale, float *shift)
{
    FOR_LANES(c, n, 0, n_channels, fold_sums(norm, bias, c, n, scale, shift));
}

/* A number a channel becomes one a column; from the last on none is overwritten. */
static void repeat(float *numbers, int64_t n_channels, int64_t n_alike)
{
    for (int64_t c = n_channels; c-- > 0;)
        for (int64_t k = n_alike; k-- > 0;)
            numbers[c * n_alike + k] = numbers[c];
}

TARGET static void fold_all(const ptac_call *call, eval_job *job)
{
    FOR_LANES(c, n, 0, job->n_channels, fold(call, job, c, n));
    if (job->n_alike > 1) {
        repeat(job->center, job->n_channels, job->n_alike);
        repeat(job->scale, job->n_channels, job->n_alike);
        repeat(job->shift, job->n_channels, job->n_alike);
    }
}

static ptac_status by_running(const ptac_call *call, ptac_act act)
{
    const ptac_channel_norm *p = call->params;
    const bool is_matrix = ptac_channel_norm_is_matrix(p);
    eval_job job = {
        .n_columns = is_matrix ? p->n_channels * p->n_pixels : 1,
        .n_pixels = is_matrix ? 1 : p->n_pixels,
        .n_alike = is_matrix ? p->n_pixels : 1,
        .n_lines = is_matrix ? p->n_images : p->n_images * p->n_channels,
        .n_channels = p->n_channels,
        .x = call->inputs[PTAC_BATCH_NORM_X].data,
        .y = call->outputs[PTAC_BATCH_NORM_Y].data,
    };
    const int64_t n_numbers = p->n_channels * job.n_alike;

    job.center = ptac_scratch_take(3 * (size_t)n_numbers * sizeof(float));
    if (!job.center)
        return PTAC_NO_MEMORY;
    job.scale = job.center + n_numbers;
    job.shift = job.scale + n_numbers;
    fold_all(call, &job);
    ptac_parallel_for(0, job.n_lines,
                      ptac_parts(WORTH_A_THREAD, job.n_columns * job.n_pixels),
                      normalize_by(act), &job);
    ptac_scratch_give(job.center);
    return PTAC_OK;
}
