/*
 * batch_norm_tpl.h - a piece of batch normalization: its sums, and its results.
 *
 * Expects the words of lanes.h. Leaves batch_norm(call), batch_norm_act(call) and
 * their gradients batch_norm_backward(call), batch_norm_act_backward(call), which are
 * run() of rows. Functions that take the activation are inlined into one for each.
 */
#include "ops/linear/act_tpl.h"
#include "ops/norm/batch_norm_run.h"

#include <math.h>

enum {
    N_SIDE = 4,   /* vectors side by side, so that sums do not wait for each other */
    N_FLOAT = 32, /* elements of a lane that add up in float, or little more */
};

/* The activation whose gradient takes longer to compute twice than to keep. */
#define COSTLY PTAC_ACT_SILU

/* The two sums of each lane, in double. */
typedef struct lane_sums {
    vec_f64 first_low, first_high, second_low, second_high;
} lane_sums;

/* The same of a few elements, in float. */
typedef struct few_sums {
    vec first, second;
} few_sums;

INLINE lane_sums no_sums(void)
{
    const vec_f64 zero = PD(setzero)();

    return (lane_sums){zero, zero, zero, zero};
}

INLINE void add_few(lane_sums *s, few_sums few)
{
    s->first_low = PD(add)(s->first_low, v_low_f64(few.first));
    s->first_high = PD(add)(s->first_high, v_high_f64(few.first));
    s->second_low = PD(add)(s->second_low, v_low_f64(few.second));
    s->second_high = PD(add)(s->second_high, v_high_f64(few.second));
}

/* The first n lanes from p on; the others are those of center, which adds nothing. */
INLINE vec load_or(const float *p, vec center, int n)
{
    return v_keep_first(v_load_first(p, n), center, n);
}

/* The numbers of ptac_batch_norm_job, of one column or of some side by side. */
typedef struct columns {
    vec center, scale, slope, shift, z_scale, z_shift;
} columns;

/* Of the first n columns from c on, or of one for all lanes. */
INLINE columns columns_of(const ptac_batch_norm_job *job, int64_t c, int n, bool is_one,
                          bool is_backward, ptac_act act)
{
#define NUMBERS(name) is_one ? v_set(job->name[c]) : v_load_first(job->name + c, n)
    const bool has_z = is_backward && act != PTAC_ACT_NONE;

    return (columns){
        .center = NUMBERS(center),
        .scale = NUMBERS(scale),
        .slope = is_backward ? NUMBERS(slope) : v_zero(),
        .shift = NUMBERS(shift),
        .z_scale = has_z ? NUMBERS(z_scale) : v_zero(),
        .z_shift = has_z ? NUMBERS(z_shift) : v_zero(),
    };
#undef NUMBERS
}

/* What grad, of act(z), is of z. */
INLINE vec grad_of_z(vec grad, vec away, const columns *of, ptac_act act)
{
    if (act == PTAC_ACT_NONE)
        return grad;
    return act_gradient(grad, v_fma(away, of->z_scale, of->z_shift), act);
}

/* What result is formed of: gradients of act(z), or of z where those were kept. */
INLINE const float *grads_of(const ptac_batch_norm_job *job, ptac_act act)
{
    return act == PTAC_ACT_NONE && job->grad_z ? job->grad_z : job->grad;
}

INLINE void put_lanes(float *result, const float *x, const float *grad,
                      const columns *of, int n, ptac_act act, bool streams)
{
    const vec away = v_sub(v_load_first(x, n), of->center);
    vec y;

    if (grad)
        y = v_fma(grad_of_z(v_load_first(grad, n), away, of, act), of->scale,
                  v_fma(away, of->slope, of->shift));
    else
        y = act_of(v_fma(away, of->scale, of->shift), act);
    if (streams && n == LANES)
        v_stream(result, y);
    else
        v_store_first(result, y, n);
}

/*
 * The elements [done, end) of a part of a channel of NCHW, of which n from place at on
 * lie one behind the other in an image.
 */
typedef struct pixels {
    int64_t at, n, done, end, n_pixels, per_image;
} pixels;

static inline pixels first_pixels(const ptac_batch_norm_job *job, int64_t channel,
                                  int64_t part)
{
    const int64_t n_pixels = job->p->n_pixels,
                  per_image = job->p->n_channels * n_pixels;
    const int64_t begin = ptac_part_begin(job, part), end = ptac_part_end(job, part);
    const int64_t image = begin ? begin / n_pixels : 0;
    const int64_t first = begin - image * n_pixels;

    return (pixels){
        .at = image * per_image + channel * n_pixels + first,
        .n = ptac_least(n_pixels - first, end - begin),
        .done = begin,
        .end = end,
        .n_pixels = n_pixels,
        .per_image = per_image,
    };
}

/* Those of the next image, from its first pixel on. */
static inline void next_pixels(pixels *run)
{
    run->done += run->n;
    run->at += run->per_image - (run->n_pixels - run->n);
    run->n = ptac_least(run->n_pixels, run->end - run->done);
}

/*
 * Forward. The distance is taken in double, where it is exact: the center is but one of
 * the elements, and may be far away.
 */
INLINE void add_squares(lane_sums *s, vec x, vec center)
{
    const vec_f64 low = PD(sub)(v_low_f64(x), v_low_f64(center));
    const vec_f64 high = PD(sub)(v_high_f64(x), v_high_f64(center));

    s->first_low = PD(add)(s->first_low, low);
    s->first_high = PD(add)(s->first_high, high);
    s->second_low = PD(fmadd)(low, low, s->second_low);
    s->second_high = PD(fmadd)(high, high, s->second_high);
}

INLINE void sum_pixels(lane_sums *s, const float *x, int64_t n, vec center,
                       int64_t ahead)
{
    lane_sums odd = no_sums(), even = *s;
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        _mm_prefetch(x + i + ahead, _MM_HINT_T0);
        _mm_prefetch(x + i + LANES + ahead, _MM_HINT_T0);
        add_squares(&even, v_load(x + i), center);
        add_squares(&odd, v_load(x + i + LANES), center);
    }
    FOR_LANES(k, some, i, n, add_squares(&even, load_or(x + k, center, some), center));
    s->first_low = PD(add)(even.first_low, odd.first_low);
    s->first_high = PD(add)(even.first_high, odd.first_high);
    s->second_low = PD(add)(even.second_low, odd.second_low);
    s->second_high = PD(add)(even.second_high, odd.second_high);
}

/*
 * Backward, where the center is the mean, in float. The first n gradients before the
 * activation are left at kept, unless that is NULL.
 */
INLINE void add_products(few_sums *s, vec x, vec grad, const columns *of, ptac_act act,
                         float *kept, int n)
{
    const vec away = v_sub(x, of->center);
    const vec grad_z = grad_of_z(grad, away, of, act);

    if (act == COSTLY && kept)
        v_store_first(kept, grad_z, n);
    s->first = v_add(s->first, grad_z);
    s->second = v_fma(grad_z, away, s->second);
}

/* At most N_SIDE vectors behind the last whole round go to the first of few. */
INLINE void sum_gradients(few_sums *few, const float *x, const float *grad, int64_t n,
                          const columns *of, int64_t ahead, ptac_act act, float *kept)
{
    int64_t i = 0;

    for (; i + N_SIDE * LANES <= n; i += N_SIDE * LANES)
#pragma GCC unroll 4
        for (int k = 0; k < N_SIDE; k++) {
            const int64_t at = i + k * LANES;

            _mm_prefetch(x + at + ahead, _MM_HINT_T0);
            _mm_prefetch(grad + at + ahead, _MM_HINT_T0);
            add_products(&few[k], v_load(x + at), v_load(grad + at), of, act,
                         kept ? kept + at : NULL, LANES);
        }
    FOR_LANES(k, some, i, n,
              add_products(&few[0], load_or(x + k, of->center, some),
                           v_load_first(grad + k, some), of, act,
                           kept ? kept + k : NULL, some));
}

INLINE few_sums both(few_sums a, few_sums b)
{
    return (few_sums){v_add(a.first, b.first), v_add(a.second, b.second)};
}

INLINE void add_all_few(lane_sums *s, few_sums few[N_SIDE])
{
    add_few(s, both(both(few[0], few[1]), both(few[2], few[3])));
    for (int k = 0; k < N_SIDE; k++)
        few[k] = (few_sums){v_zero(), v_zero()};
}

INLINE void sum_channel(const ptac_batch_norm_job *job, int64_t channel, int64_t part,
                        bool is_backward, ptac_act act, double *sums)
{
    enum { PER_ROUND = N_SIDE * LANES, N_ROUNDS = N_FLOAT / 2 };
    const columns of = columns_of(job, channel, 1, true, is_backward, act);
    lane_sums all = no_sums();
    few_sums few[N_SIDE];
    pixels run = first_pixels(job, channel, part);
    int64_t n_added = 0; /* to a lane of few */

    for (int k = 0; k < N_SIDE; k++)
        few[k] = (few_sums){v_zero(), v_zero()};
    for (; run.done < run.end; next_pixels(&run)) {
        /* While there is a next image. */
        const int64_t ahead = run.done + run.n < run.end ? run.per_image : 0;

        if (!is_backward) {
            sum_pixels(&all, job->x + run.at, run.n, of.center, ahead);
            continue;
        }
        for (int64_t i = 0, n; i < run.n; i += n) {
            n = ptac_least(run.n - i, PER_ROUND * N_ROUNDS);
            sum_gradients(few, job->x + run.at + i, job->grad + run.at + i, n, &of,
                          ahead, act, job->grad_z ? job->grad_z + run.at + i : NULL);
            n_added += n / PER_ROUND + N_SIDE;
            if (n_added >= N_ROUNDS) {
                add_all_few(&all, few);
                n_added = 0;
            }
        }
    }
    if (is_backward)
        add_all_few(&all, few);
    sums[0] = v_total(PD(add)(all.first_low, all.first_high));
    sums[1] = v_total(PD(add)(all.second_low, all.second_high));
}

/* n neighbouring pixels from at on. */
INLINE void put_pixels(const ptac_batch_norm_job *job, int64_t at, int64_t n,
                       const columns *of, bool is_backward, ptac_act act, bool streams)
{
    const float *x = job->from + at;
    const float *grad = is_backward ? grads_of(job, act) + at : NULL;

    FOR_LANES(i, some, 0, n,
              put_lanes(job->result + at + i, x + i, is_backward ? grad + i : NULL, of,
                        some, act, streams));
}

INLINE void apply_to_channel(const ptac_batch_norm_job *job, int64_t channel,
                             int64_t part, bool is_backward, ptac_act act)
{
    const columns of = columns_of(job, channel, 1, true, is_backward, act);

    for (pixels run = first_pixels(job, channel, part); run.done < run.end;
         next_pixels(&run)) {
        if (job->streams && ptac_begins_line(job->result + run.at))
            put_pixels(job, run.at, run.n, &of, is_backward, act, true);
        else
            put_pixels(job, run.at, run.n, &of, is_backward, act, false);
    }
    if (job->streams)
        v_stream_end();
}

#include "ops/norm/batch_norm_eval_tpl.h"
#include "ops/norm/batch_norm_matrix_tpl.h"

/* For each direction and activation; sums of the elements alone serve all. */
#define DEFINE_SUM(name, is_backward, act)                                             \
    TARGET static void sum_##name(const ptac_batch_norm_job *job, int64_t block,       \
                                  int64_t part, double *sums)                          \
    {                                                                                  \
        if (job->is_matrix)                                                            \
            sum_rows(job, block, part, is_backward, act, sums);                        \
        else                                                                           \
            sum_channel(job, block, part, is_backward, act, sums);                     \
    }
#define DEFINE_APPLY(name, is_backward, act)                                           \
    TARGET static void apply_##name(const ptac_batch_norm_job *job, int64_t block,     \
                                    int64_t part)                                      \
    {                                                                                  \
        if (job->is_matrix)                                                            \
            apply_to_rows(job, block, part, is_backward, act);                         \
        else                                                                           \
            apply_to_channel(job, block, part, is_backward, act);                      \
    }
#define DEFINE_ACT(name, act)                                                          \
    DEFINE_APPLY(name, false, act)                                                     \
    DEFINE_SUM(name##_gradients, true, act)                                            \
    DEFINE_APPLY(name##_gradients, true, act)                                          \
    static const ptac_batch_norm_kernels name##_kernels = {                            \
        .sum = sum_elements,                                                           \
        .sum_gradients = sum_##name##_gradients,                                       \
        .apply = apply_##name,                                                         \
        .apply_gradients = apply_##name##_gradients,                                   \
        .apply_gradients_of_z = (act) == COSTLY ? apply_alone_gradients : NULL,        \
    };

DEFINE_SUM(elements, false, PTAC_ACT_NONE)
DEFINE_ACT(alone, PTAC_ACT_NONE)
DEFINE_ACT(relu, PTAC_ACT_RELU)
DEFINE_ACT(relu6, PTAC_ACT_RELU6)
DEFINE_ACT(silu, PTAC_ACT_SILU)
DEFINE_ACT(hardswish, PTAC_ACT_HARDSWISH)

static const ptac_batch_norm_kernels *kernels_for(ptac_act act)
{
    switch (act) {
    case PTAC_ACT_RELU:
        return &relu_kernels;
    case PTAC_ACT_RELU6:
        return &relu6_kernels;
    case PTAC_ACT_SILU:
        return &silu_kernels;
    case PTAC_ACT_HARDSWISH:
        return &hardswish_kernels;
    default:
        return &alone_kernels;
    }
}

static ptac_status batch_norm(const ptac_call *call)
{
    return ((const ptac_channel_norm *)call->params)->by_batch
               ? ptac_batch_norm_run(call, &alone_kernels)
               : by_running(call, PTAC_ACT_NONE);
}

static ptac_status batch_norm_act(const ptac_call *call)
{
    const ptac_channel_norm *p = call->params;

    return p->by_batch ? ptac_batch_norm_run(call, kernels_for(p->act))
                       : by_running(call, p->act);
}

static ptac_status batch_norm_backward(const ptac_call *call)
{
    return ptac_batch_norm_backward_run(call, &alone_kernels);
}

static ptac_status batch_norm_act_backward(const ptac_call *call)
{
    const ptac_channel_norm *p = call->params;

    return ptac_batch_norm_backward_run(call, kernels_for(p->act));
}
