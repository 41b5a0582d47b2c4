/*
 * losses_tpl.h - losses and their gradients, a vector of floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/loss/losses.h"
#include "ops/math/quick_tpl.h"

/* What a loss is given besides x and the target; outside stays 0 while x is allowed. */
typedef struct loss_terms {
    vec beta, half_beta, per_beta, outside;
} loss_terms;

INLINE loss_terms terms_of(const ptac_call *call)
{
    const ptac_loss *p = call->params;

    return (loss_terms){v_set((float)p->beta), v_set((float)(0.5 * p->beta)),
                        v_set((float)(0.5 / p->beta)), v_zero()};
}

INLINE vec mse_of(vec x, vec t, loss_terms *terms)
{
    const vec away = v_sub(x, t);

    (void)terms;
    return v_mul(away, away);
}

INLINE vec smooth_l1_of(vec x, vec t, loss_terms *terms)
{
    const vec away = v_abs(v_sub(x, t));
    const vec square = v_mul(v_mul(away, away), terms->per_beta);

    return v_pick(v_at_most(terms->beta, away), v_sub(away, terms->half_beta), square);
}

/* log(x) of no x below 0, or -100 where it would be less. -0 is a zero. */
INLINE vec bounded_log(vec probability)
{
    const vec x = v_abs(probability);
    const mask is_small = v_less(x, v_set(0x1p-126f));
    const vec normal = v_pick(is_small, v_mul(x, v_set(0x1p24f)), x);
    const vec more = v_pick(is_small, v_set(-0x1.0a2b24p4f), v_zero()); /* -24 ln(2) */

    /* Of zero this is -104. */
    return v_max(v_set(-100), v_add(v_log(normal), more));
}

/* How far x is from what probabilities can be. */
INLINE vec beyond(vec x)
{
    return v_abs(v_sub(x, v_min(v_set(1), v_max(v_zero(), x))));
}

INLINE vec bce_of(vec x, vec t, loss_terms *terms)
{
    /* NaN at 1, where -100 takes its place. */
    const vec log_rest = v_max(v_log1p(v_sub(v_zero(), x)), v_set(-100));

    terms->outside = v_add(terms->outside, v_add(beyond(x), beyond(t)));
    return v_sub(v_mul(v_sub(t, v_set(1)), log_rest), v_mul(t, bounded_log(x)));
}

INLINE vec logits_of(vec x, vec t, loss_terms *terms)
{
    const vec e = v_exp_quick(v_sub(v_zero(), v_abs(x)));
    const vec log_sigmoid = v_sub(v_min(v_zero(), x), v_log1p(e));

    (void)terms;
    return v_sub(v_mul(v_sub(v_set(1), t), x), log_sigmoid);
}

INLINE void note_outside(ptac_loss_work *work, const loss_terms *terms)
{
    if (!(v_sum(terms->outside) == 0))
        __atomic_store_n(&work->is_outside, true, __ATOMIC_RELAXED);
}

/* Sums of two vectors at a time are rounded to float, sums of these are in double. */
#define LOSS(id, name)                                                                 \
    TARGET static void name##_each(int64_t begin, int64_t end, void *context)          \
    {                                                                                  \
        ptac_loss_work *work = context;                                                \
        const ptac_call *call = work->call;                                            \
        const float *x = call->inputs[PTAC_LOSS_X].data;                               \
        const float *t = call->inputs[PTAC_LOSS_TARGET].data;                          \
        float *y = call->outputs[0].data;                                              \
        loss_terms terms = terms_of(call);                                             \
                                                                                       \
        FOR_LANES(i, n, begin, end,                                                    \
                  v_store_first(y + i,                                                 \
                                name##_of(v_load_first(x + i, n),                      \
                                          v_load_first(t + i, n), &terms),             \
                                n));                                                   \
        note_outside(work, &terms);                                                    \
    }                                                                                  \
    TARGET static double name##_sum(ptac_loss_work *work, int64_t begin, int64_t end)  \
    {                                                                                  \
        const ptac_call *call = work->call;                                            \
        const float *x = call->inputs[PTAC_LOSS_X].data;                               \
        const float *t = call->inputs[PTAC_LOSS_TARGET].data;                          \
        loss_terms terms = terms_of(call);                                             \
        vec_f64 low = PD(setzero)(), high = low;                                       \
        int64_t at = begin;                                                            \
                                                                                       \
        for (; at + 2 * LANES <= end; at += 2 * LANES) {                               \
            const vec a = name##_of(v_load(x + at), v_load(t + at), &terms);           \
            const vec b =                                                              \
                name##_of(v_load(x + at + LANES), v_load(t + at + LANES), &terms);     \
            const vec two = v_add(a, b);                                               \
                                                                                       \
            low = PD(add)(low, v_low_f64(two));                                        \
            high = PD(add)(high, v_high_f64(two));                                     \
        }                                                                              \
        FOR_LANES(i, n, at, end,                                                       \
                  const vec rest =                                                     \
                      v_keep_first(name##_of(v_load_first(x + i, n),                   \
                                             v_load_first(t + i, n), &terms),          \
                                   v_zero(), n);                                       \
                  low = PD(add)(low, v_low_f64(rest));                                 \
                  high = PD(add)(high, v_high_f64(rest)));                             \
        note_outside(work, &terms);                                                    \
        return v_total(PD(add)(low, high));                                            \
    }                                                                                  \
    static void name##_blocks(int64_t begin, int64_t end, void *context)               \
    {                                                                                  \
        ptac_loss_work *work = context;                                                \
                                                                                       \
        for (int64_t block = begin; block < end; block++)                              \
            work->sums[block] = name##_sum(work, block * PTAC_LOSS_BLOCK,              \
                                           ptac_loss_block_end(work->call, block));    \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        return ptac_loss_run(call, name##_each, name##_blocks);                        \
    }                                                                                  \
    PTAC_ROW(id, ISA, PTAC_CLOSE, NEEDS, ptac_loss_accepts, run_##name)

LOSS(MSE_LOSS, mse)
LOSS(SMOOTH_L1_LOSS, smooth_l1)
LOSS(BINARY_CROSS_ENTROPY, bce)
LOSS(BINARY_CROSS_ENTROPY_WITH_LOGITS, logits)

/* What a gradient is given: ATen's factors of mean and sum, and 1 / beta. */
typedef struct slope_terms {
    vec norm, twice_norm, beta, per_beta;
} slope_terms;

INLINE slope_terms slope_terms_of(const ptac_call *call)
{
    const ptac_loss *p = call->params;
    const double norm = ptac_loss_norm(call);

    return (slope_terms){v_set((float)norm), v_set((float)(2 * norm)),
                         v_set((float)p->beta), v_set((float)(1 / p->beta))};
}

INLINE vec mse_slope(vec grad, vec x, vec t, const slope_terms *terms)
{
    return v_mul(v_mul(terms->twice_norm, v_sub(x, t)), grad);
}

INLINE vec smooth_l1_slope(vec grad, vec x, vec t, const slope_terms *terms)
{
    const vec away = v_sub(x, t), near = v_mul(away, terms->per_beta);
    const vec far = v_with_sign(v_set(1), away);
    const vec slope = v_pick(v_at_most(terms->beta, v_abs(away)), far, near);

    return v_mul(v_mul(terms->norm, slope), grad);
}

INLINE vec bce_slope(vec grad, vec x, vec t, const slope_terms *terms)
{
    const vec product = v_mul(v_sub(v_set(1), x), x);
    const vec bounded = v_max(v_set(1e-12f), product);

    return v_mul(v_div(v_mul(grad, v_sub(x, t)), bounded), terms->norm);
}

#define GRADIENT(id, level, name)                                                      \
    TARGET static void name##_slopes(int64_t begin, int64_t end, void *context)        \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *x = call->inputs[PTAC_LOSS_GRAD_X].data;                          \
        const float *t = call->inputs[PTAC_LOSS_GRAD_TARGET].data;                     \
        const float *grads = call->inputs[PTAC_LOSS_GRAD].data;                        \
        const vec one_grad = v_set(grads[0]);                                          \
        const slope_terms terms = slope_terms_of(call);                                \
        float *of_x = call->outputs[0].data;                                           \
                                                                                       \
        if (call->inputs[PTAC_LOSS_GRAD].n_elements == 1)                              \
            FOR_LANES(i, n, begin, end,                                                \
                      v_store_first(of_x + i,                                          \
                                    name##_slope(one_grad, v_load_first(x + i, n),     \
                                                 v_load_first(t + i, n), &terms),      \
                                    n));                                               \
        else                                                                           \
            FOR_LANES(i, n, begin, end,                                                \
                      v_store_first(of_x + i,                                          \
                                    name##_slope(v_load_first(grads + i, n),           \
                                                 v_load_first(x + i, n),               \
                                                 v_load_first(t + i, n), &terms),      \
                                    n));                                               \
    }                                                                                  \
    static ptac_status run_##name##_slope(const ptac_call *call)                       \
    {                                                                                  \
        return ptac_loss_gradients(call, name##_slopes);                               \
    }                                                                                  \
    PTAC_ROW(id, ISA, level, NEEDS, ptac_loss_accepts, run_##name##_slope)

GRADIENT(MSE_LOSS_BACKWARD, PTAC_EXACT, mse)
GRADIENT(SMOOTH_L1_LOSS_BACKWARD, PTAC_CLOSE, smooth_l1)
GRADIENT(BINARY_CROSS_ENTROPY_BACKWARD, PTAC_CLOSE, bce)
