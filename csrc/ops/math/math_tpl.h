/*
 * math_tpl.h - exp, log, tanh, sigmoid and their kin on float lanes.
 *
 * A template whose parameters are LANES, LANES_TABLE(name), the table made for so many
 * lanes, and the words of lanes.h: it is included behind lanes_<isa>.h, once in a file.
 *
 * Errors are stated in units in the last place (ulp) of the result: no larger one was
 * found against float64, on all floats from 2^-14 to 2^7 and on every 97th of the
 * others. The arrays below are what tools/minimax.py prints: it derives them from the
 * functions themselves.
 */
#ifndef PTAC_OPS_MATH_MATH_TPL_H
#define PTAC_OPS_MATH_MATH_TPL_H

#include "ops/math/normal_tables.h"

#include <math.h>

/* Even and odd powers apart, which halves the chain of dependent steps. */
INLINE vec v_polynomial(vec x, const float *terms, int n)
{
    const vec square = v_mul(x, x);
    vec even = v_set(terms[(n - 1) & ~1]), odd = v_set(terms[(n - 2) | 1]);

#pragma GCC unroll 16
    for (int i = ((n - 1) & ~1) - 2; i >= 0; i -= 2)
        even = v_fma(even, square, v_set(terms[i]));
#pragma GCC unroll 16
    for (int i = ((n - 2) | 1) - 2; i > 0; i -= 2)
        odd = v_fma(odd, square, v_set(terms[i]));
    return v_fma(odd, x, even);
}

#define ROWS_OF(array)       (sizeof(array) / sizeof *(array))
#define POLYNOMIAL(x, terms) v_polynomial(x, terms, (int)ROWS_OF(terms))

/* (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, relative to exp(r): 2^-28.3 */
static const float exp_terms[] = {0.49999994f, 0.166665211f, 0.0416682549f,
                                  0.00836866163f, 0.00138214533f};

/*
 * exp(x) for x <= 88 or NaN, 1.1 ulp. x = n * ln(2) + r, where the upper part of ln(2)
 * has 15 bits, so that n times it is exact (Cody and Waite).
 */
INLINE vec v_exp_bounded(vec x)
{
    /* Behind -104 results round to zero; -inf would reduce to NaN. */
    const vec bounded = v_max(v_set(-104), x);
    const vec n = v_round(v_mul(bounded, v_set(0x1.715476p0f)));
    const vec upper = v_fnma(n, v_set(0x1.62e4p-1f), bounded);
    const vec r = v_fnma(n, v_set(0x1.7f7d1cp-20f), upper);
    const vec rest = v_fma(v_mul(r, r), POLYNOMIAL(r, exp_terms), r);

    return v_scale(v_add(rest, v_set(1)), n);
}

/* exp(x), 1.1 ulp, gradual underflow included. */
INLINE vec v_exp(vec x)
{
    return v_exp_bounded(v_min(v_set(89), x));
}

/*
 * (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f < sqrt(2), relative to
 * log(1 + f): 2^-27.4
 */
static const float log_terms[] = {0.333333313f,  -0.250008196f, 0.200012416f,
                                  -0.166234091f, 0.14201583f,   -0.131596163f,
                                  0.12762177f,   -0.0763634741f};

/* log(x) for positive normal x, +inf and NaN; 0.9 ulp. */
INLINE vec v_log(vec x)
{
    vec n;
    const vec f = v_sub(v_split(x, &n), v_set(1));
    const vec square = v_mul(f, f);
    vec rest = v_mul(v_mul(square, f), POLYNOMIAL(f, log_terms));

    /* Small parts first: f is exact, the upper part of ln(2) times n as well. */
    rest = v_fma(n, v_set(0x1.7f7d1cp-20f), rest);
    rest = v_add(v_fma(v_set(-0.5f), square, rest), f);
    return v_pick(v_less(x, v_set(INFINITY)), v_fma(n, v_set(0x1.62e4p-1f), rest), x);
}

/* log(1 + x) for -1 < x <= 1, 2 ulp, and NaN; NaN at -1, too. */
INLINE vec v_log1p(vec x)
{
    const vec y = v_add(x, v_set(1)), rest = v_sub(x, v_sub(y, v_set(1)));

    return v_add(v_log(y), v_div(rest, y));
}

/* 1 / (1 + exp(-x)), 2.5 ulp. */
INLINE vec v_sigmoid(vec x)
{
    const vec e = v_exp_bounded(v_sub(v_zero(), v_abs(x)));

    return v_div(v_pick(v_less(x, v_zero()), e, v_set(1)), v_add(v_set(1), e));
}

/* The same, 2.9 ulp, and *slope = its derivative, 5.1 ulp, also where it is small. */
INLINE vec v_sigmoid_slope(vec x, vec *slope)
{
    const vec e = v_exp_bounded(v_sub(v_zero(), v_abs(x)));
    const vec far = v_div(v_set(1), v_add(v_set(1), e));
    const vec near = v_mul(e, far);

    *slope = v_mul(near, far);
    return v_pick(v_less(x, v_zero()), near, far);
}

/* (tanh(x) / x - 1) / x^2 in x^2 for |x| < 0.5625, relative to tanh(x) / x: 2^-29.4 */
static const float tanh_terms[] = {-0.333333135f, 0.13332437f, -0.0538357571f,
                                   0.021000376f, -0.00616961392f};

/* tanh(x), 1.6 ulp. */
INLINE vec v_tanh(vec x)
{
    const vec away = v_abs(x), square = v_mul(x, x);
    const vec near = v_fma(v_mul(away, square), POLYNOMIAL(square, tanh_terms), away);
    const vec e = v_exp_bounded(v_mul(away, v_set(-2)));
    const vec far = v_sub(v_set(1), v_div(v_add(e, e), v_add(v_set(1), e)));

    /* The sign comes last, so that -0 keeps its own. */
    return v_with_sign(v_pick(v_less(away, v_set(0.5625f)), near, far), x);
}

/*
 * A function of a >= 0 that vanishes for large a, from its table in normal_tables.h.
 * Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
 */
INLINE vec v_piecewise(vec a, const float (*terms)[LANES], int n_terms, float per_unit)
{
    const vec place = v_min(v_set(LANES - 1), v_mul(a, v_set(per_unit)));
    const vec piece = v_add(place, v_set(0x1.8p23f));
    const vec r = v_sub(place, v_sub(piece, v_set(0x1.8p23f)));
    vec sum = v_lookup(terms[n_terms - 1], piece);

#pragma GCC unroll 8
    for (int i = n_terms - 2; i >= 0; i--)
        sum = v_fma(sum, r, v_lookup(terms[i], piece));
    return sum;
}

#define PIECEWISE(a, name)                                                             \
    v_piecewise(a, LANES_TABLE(name##_terms), (int)ROWS_OF(LANES_TABLE(name##_terms)), \
                LANES_TABLE(name##_per_unit))

/* The standard normal distribution's integral up to x, absolute error 1.2 * 2^-24. */
INLINE vec v_normal(vec x)
{
    const vec tail = PIECEWISE(v_abs(x), normal_tail);

    return v_pick(v_less(x, v_zero()), tail, v_sub(v_set(1), tail));
}

/* The derivative of x * v_normal(x), absolute error 2^-23; NaN where x is infinite. */
INLINE vec v_gelu_slope(vec x)
{
    const vec tail = PIECEWISE(v_abs(x), gelu_slope);
    const vec slope = v_pick(v_less(x, v_zero()), tail, v_sub(v_set(1), tail));

    return v_fma(x, v_zero(), slope);
}

#endif
