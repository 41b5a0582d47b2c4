/*
 * act_tpl.h - activations of a vector.
 *
 * Expects the words of lanes.h.
 */
#ifndef PTAC_OPS_LINEAR_ACT_TPL_H
#define PTAC_OPS_LINEAR_ACT_TPL_H

#include "ops/linear/act.h"
#include "ops/math/math_tpl.h"

#define SQRT_2_PI 0x1.988454p-1f /* sqrt(2 / pi) */
#define CUBIC     0.044715f

/* 2 u(z) with u(z) = sqrt(2 / pi) * (z + 0.044715 z^3), of ATen's tanh GELU. */
INLINE vec gelu_tanh_inner(vec z)
{
    const vec cube = v_mul(v_mul(z, z), z);

    return v_mul(v_set(2 * SQRT_2_PI), v_fma(cube, v_set(CUBIC), z));
}

INLINE vec act_of(vec z, ptac_act act)
{
    vec inner;

    switch (act) {
    case PTAC_ACT_RELU:
        return v_max(v_zero(), z);
    case PTAC_ACT_GELU:
        return v_mul(z, v_normal(z));
    case PTAC_ACT_GELU_TANH:
        return v_mul(z, v_sigmoid(gelu_tanh_inner(z)));
    case PTAC_ACT_SILU:
        return v_mul(z, v_sigmoid(z));
    case PTAC_ACT_TANH:
        return v_tanh(z);
    case PTAC_ACT_SIGMOID:
        return v_sigmoid(z);
    case PTAC_ACT_RELU6:
        return v_min(v_set(6), v_max(v_zero(), z));
    case PTAC_ACT_HARDSWISH:
        inner = v_min(v_set(6), v_max(v_zero(), v_add(z, v_set(3))));
        return v_mul(v_mul(z, inner), v_set(1.0f / 6));
    default:
        return z;
    }
}

/*
 * g's gradient through act, of z = what that was applied to; of ReLU, tanh and sigmoid
 * y = act(z) may stand in its place, and of the last two has to. Edges are as stock's.
 * Where z is NaN, its vectors let g through ReLU and not through ReLU6.
 */
INLINE vec act_gradient(vec g, vec z, ptac_act act)
{
    const vec three = v_set(3);
    vec s, slope, inner;

    switch (act) {
    case PTAC_ACT_RELU:
        return v_pick(v_at_most(z, v_zero()), v_zero(), g);
    case PTAC_ACT_GELU:
        return v_mul(g, v_gelu_slope(z));
    case PTAC_ACT_GELU_TANH:
        s = v_sigmoid_slope(gelu_tanh_inner(z), &slope);
        inner = v_fma(v_mul(z, z), v_set(3 * CUBIC), v_set(1));
        inner = v_mul(inner, v_set(2 * SQRT_2_PI));
        return v_mul(g, v_fma(v_mul(z, slope), inner, s));
    case PTAC_ACT_SILU:
        s = v_sigmoid_slope(z, &slope);
        return v_mul(g, v_fma(z, slope, s));
    case PTAC_ACT_TANH:
        return v_mul(g, v_fnma(z, z, v_set(1)));
    case PTAC_ACT_SIGMOID:
        return v_mul(v_mul(g, v_sub(v_set(1), z)), z);
    case PTAC_ACT_RELU6:
        g = v_pick(v_less(z, v_set(6)), g, v_zero());
        return v_pick(v_less(v_zero(), z), g, v_zero());
    case PTAC_ACT_HARDSWISH:
        slope = v_fma(z, v_set(1.0f / 3), v_set(0.5f));
        g = v_pick(v_at_most(three, z), g, v_mul(g, slope));
        return v_pick(v_at_most(z, v_sub(v_zero(), three)), v_zero(), g);
    default:
        return g;
    }
}

#endif
