/*
 * curves_tpl.h - GELU, tanh, sigmoid, SiLU, Hardswish, Hardsigmoid and their gradients,
 * a vector of floats at a time.
 *
 * Included behind lanes_<isa>.h. The includer also defines
 *
 *   ISA     string: the rows' name
 *   NEEDS   PTAC_CPU_*: what the CPU must have
 */
#include "ops/activation/activation.h"
#include "ops/linear/act_tpl.h"
#include "ops/math/quick_tpl.h"

#define SIXTH (1.0f / 6)

/* max(0, x + 3) up to 6, in ATen's steps: NaN stays. */
INLINE vec hard_inner(vec x)
{
    return v_min(v_set(6), v_max(v_zero(), v_add(x, v_set(3))));
}

INLINE vec hardsigmoid_gradient_of(vec grad, vec x)
{
    const vec inside =
        v_pick(v_less(v_set(-3), x), v_mul(grad, v_set(SIXTH)), v_zero());

    return v_pick(v_less(x, v_set(3)), inside, v_zero());
}

INLINE vec hardswish_gradient_of(vec grad, vec x)
{
    const vec slope = v_fma(x, v_set(1.0f / 3), v_set(0.5f));
    const vec above = v_pick(v_at_most(v_set(3), x), grad, v_mul(grad, slope));

    return v_pick(v_less(x, v_set(-3)), v_zero(), above);
}

/* By ATen's formulas, which give NaN at infinities. */
INLINE vec silu_slope(vec x)
{
    const vec s = v_div(v_set(1), v_sigmoid_divisor(x));

    return v_mul(s, v_fma(x, v_sub(v_set(1), s), v_set(1)));
}

INLINE vec gelu_tanh_slope(vec x)
{
    const vec s = v_div(v_set(1), v_sigmoid_divisor(gelu_tanh_inner(x)));
    const vec bend = v_mul(v_mul(x, s), v_sub(v_set(1), s));
    const vec steep =
        v_fma(v_mul(x, x), v_set(2 * SQRT_2_PI * 3 * CUBIC), v_set(2 * SQRT_2_PI));

    return v_fma(bend, steep, s);
}

/* value: of x, a vector. */
#define CURVE(name, value)                                                             \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *at = call->inputs[0].data;                                        \
        float *y = call->outputs[0].data;                                              \
                                                                                       \
        FOR_LANES(i, n, begin, end, const vec x = v_load_first(at + i, n);             \
                  v_store_first(y + i, value, n));                                     \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        ptac_share_elements(call, name);                                               \
        return PTAC_OK;                                                                \
    }

/* value: of grad and x, vectors. */
#define GRADIENT(name, value)                                                          \
    TARGET static void name(int64_t begin, int64_t end, void *context)                 \
    {                                                                                  \
        const ptac_call *call = context;                                               \
        const float *grads = call->inputs[PTAC_MISH_GRAD].data;                        \
        const float *at = call->inputs[PTAC_MISH_GRAD_X].data;                         \
        float *of_x = call->outputs[0].data;                                           \
                                                                                       \
        FOR_LANES(i, n, begin, end, const vec x = v_load_first(at + i, n);             \
                  const vec grad = v_load_first(grads + i, n);                         \
                  v_store_first(of_x + i, value, n));                                  \
    }                                                                                  \
    static ptac_status run_##name(const ptac_call *call)                               \
    {                                                                                  \
        ptac_share_elements(call, name);                                               \
        return PTAC_OK;                                                                \
    }

CURVE(gelu_erf, v_mul(x, v_normal_quick(x)))
CURVE(gelu_onednn, v_mul(x, v_fma(x, v_zero(), v_normal_quick(x))))
CURVE(gelu_tanh, v_div(x, v_sigmoid_divisor(gelu_tanh_inner(x))))
CURVE(tangent, v_tanh(x))
CURVE(sigmoid, v_sigmoid_quick(x))
CURVE(silu, v_div(x, v_sigmoid_divisor(x)))
CURVE(hardswish, v_mul(v_mul(x, hard_inner(x)), v_set(SIXTH)))
CURVE(hardsigmoid, v_mul(hard_inner(x), v_set(SIXTH)))
GRADIENT(gelu_erf_gradient, v_mul(grad, v_gelu_slope_quick(x)))
GRADIENT(gelu_tanh_gradient, v_mul(grad, gelu_tanh_slope(x)))
GRADIENT(silu_gradient, v_mul(grad, silu_slope(x)))
GRADIENT(hardsigmoid_gradient, hardsigmoid_gradient_of(grad, x))

static ptac_status run_gelu(const ptac_call *call)
{
    const ptac_gelu *p = call->params;

    if (p->is_tanh)
        return run_gelu_tanh(call);
    return (p->is_onednn ? run_gelu_onednn : run_gelu_erf)(call);
}

static ptac_status run_gelu_gradient(const ptac_call *call)
{
    const ptac_gelu *p = call->params;

    return (p->is_tanh ? run_gelu_tanh_gradient : run_gelu_erf_gradient)(call);
}

typedef struct nan_work {
    const ptac_call *call;
    bool has_nan;
} nan_work;

/* What turns NaN where x is, and else stays 0. */
INLINE vec note_nan(vec seen, vec x)
{
    const vec bounded = v_min(v_set(1), v_max(v_set(-1), x));

    return v_fma(bounded, v_zero(), seen);
}

TARGET static void hardswish_gradient(int64_t begin, int64_t end, void *context)
{
    nan_work *work = context;
    const float *grads = work->call->inputs[PTAC_MISH_GRAD].data;
    const float *at = work->call->inputs[PTAC_MISH_GRAD_X].data;
    float *of_x = work->call->outputs[0].data;
    vec seen = v_zero();

    FOR_LANES(i, n, begin, end, const vec x = v_load_first(at + i, n);
              const vec grad = v_load_first(grads + i, n); seen = note_nan(seen, x);
              v_store_first(of_x + i, hardswish_gradient_of(grad, x), n));
    if (isnan(v_sum(seen)))
        __atomic_store_n(&work->has_nan, true, __ATOMIC_RELAXED);
}

static ptac_status run_hardswish_gradient(const ptac_call *call)
{
    nan_work work = {call, false};

    ptac_parallel_for(0, call->inputs[0].n_elements, 16384, hardswish_gradient, &work);
    return work.has_nan ? PTAC_UNSUITED : PTAC_OK;
}

#define CURVE_ROW(id, level, run)                                                      \
    PTAC_ROW(id, ISA, level, NEEDS, ptac_activation_accepts, run)

CURVE_ROW(GELU, PTAC_CLOSE, run_gelu)
CURVE_ROW(GELU_BACKWARD, PTAC_CLOSE, run_gelu_gradient)
CURVE_ROW(TANH, PTAC_CLOSE, run_tangent)
CURVE_ROW(SIGMOID, PTAC_CLOSE, run_sigmoid)
CURVE_ROW(SILU, PTAC_CLOSE, run_silu)
CURVE_ROW(SILU_BACKWARD, PTAC_CLOSE, run_silu_gradient)
CURVE_ROW(HARDSWISH, PTAC_CLOSE, run_hardswish)
CURVE_ROW(HARDSWISH_BACKWARD, PTAC_CLOSE, run_hardswish_gradient)
CURVE_ROW(HARDSIGMOID, PTAC_CLOSE, run_hardsigmoid)
CURVE_ROW(HARDSIGMOID_BACKWARD, PTAC_EXACT, run_hardsigmoid_gradient)
