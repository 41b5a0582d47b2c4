/*
 * gates_tpl.h - sigmoid and tanh as gates need them, in few instructions.
 *
 * Included behind lanes_<isa>.h. They take the ports that a step's products take.
 */
#ifndef PTAC_OPS_RECURRENT_GATES_TPL_H
#define PTAC_OPS_RECURRENT_GATES_TPL_H

#include "ops/math/quick_tpl.h"

/*
 * Of what is below -87 as small as a normal number can be, and 0 where exp(-x) is
 * infinite, which infinity times a gate then turns into NaN as by stock; absolute error
 * 2^-24.
 */
INLINE vec gate_sigmoid(vec x)
{
    const vec e = v_exp_quick(v_min(v_set(87), v_sub(v_zero(), x)));

    return v_pick(v_less(x, v_set(-88.7228f)), v_zero(),
                  v_reciprocal(v_add(v_set(1), e)));
}

/* tanh(x), 2 ulp. */
INLINE vec gate_tanh(vec x)
{
    const vec away = v_abs(x), square = v_mul(x, x);
    const vec near = v_fma(v_mul(away, square), POLYNOMIAL(square, tanh_terms), away);
    const vec e = v_exp_quick(v_mul(away, v_set(-2)));
    const vec far = v_fnma(v_add(e, e), v_reciprocal(v_add(v_set(1), e)), v_set(1));

    return v_with_sign(v_pick(v_less(away, v_set(0.5625f)), near, far), x);
}

/*
 * tanh(x) / x in x^2, a quotient of two polynomials for |x| < 7.9, where tanh(x) is
 * almost 1; relative to it 2^-27.4. Printed by tools/minimax.py gates.
 */
static const float tanh_above[] = {1, 0.1345063f, 0.00357900281f, 2.20234251e-05f,
                                   1.54282294e-08f};
static const float tanh_below[] = {1, 0.467839569f, 0.0261922795f, 0.000342366809f,
                                   8.5988836e-07f};

/* p(x) by Horner's rule; n is a constant. */
INLINE vec v_horner(vec x, const float *terms, int n)
{
    vec sum = v_set(terms[n - 1]);

#pragma GCC unroll 8
    for (int i = n - 2; i >= 0; i--)
        sum = v_fma(sum, x, v_set(terms[i]));
    return sum;
}

/* tanh(x), 5.5 ulp where it is almost 1, and never beyond. */
INLINE vec gate_tanh_quick(vec x)
{
    const vec near = v_max(v_set(-7.9f), v_min(v_set(7.9f), x));
    const vec square = v_mul(near, near);
    const vec above = v_mul(near, v_horner(square, tanh_above, 5));
    const vec below = v_horner(square, tanh_below, 5);
#ifdef LANES_ARE_QUICK
    const vec inverse = PS(rcp14)(below), result = v_mul(above, inverse);

    return v_fma(v_fnma(below, result, above), inverse, result);
#else
    return v_div(above, below);
#endif
}

#endif
