/*
 * quick_tpl.h - exp, sigmoid and GELU in as few instructions as lanes allow.
 *
 * Included behind lanes_<isa>.h, as math_tpl.h, whose functions are more exact in their
 * tails: here an error may be a unit roundoff of the largest value that the function
 * has, as that of ATen's formulas is.
 */
#ifndef PTAC_OPS_MATH_QUICK_TPL_H
#define PTAC_OPS_MATH_QUICK_TPL_H

#include "ops/math/math_tpl.h"

#ifdef LANES_ARE_QUICK

/* 2^(k / 16) */
static const float sixteenths[LANES] = {1,
                                        0x1.0b5586p0f,
                                        0x1.172b84p0f,
                                        0x1.2387a6p0f,
                                        0x1.306fe0p0f,
                                        0x1.3dea64p0f,
                                        0x1.4bfdaep0f,
                                        0x1.5ab07ep0f,
                                        0x1.6a09e6p0f,
                                        0x1.7a1148p0f,
                                        0x1.8ace54p0f,
                                        0x1.9c4918p0f,
                                        0x1.ae89fap0f,
                                        0x1.c199bep0f,
                                        0x1.d5818ep0f,
                                        0x1.ea4afap0f};

/*
 * exp(x) for x <= 1000 or NaN, 1.2 ulp, inf where it is larger than floats are. x is a
 * sixteenth n of ln(2) and r; adding 1.5 * 2^19 rounds to sixteenths and leaves their
 * number in the low bits.
 */
INLINE vec v_exp_quick(vec x)
{
    const vec bounded = v_max(v_set(-104), x);
    const vec shifted = v_fma(bounded, v_set(0x1.715476p0f), v_set(0x1.8p19f));
    const vec n = v_sub(shifted, v_set(0x1.8p19f));
    const vec upper = v_fnma(n, v_set(0x1.62e4p-1f), bounded);
    const vec r = v_fnma(n, v_set(0x1.7f7d1cp-20f), upper);
    const vec square = v_fma(r, v_set(1.0f / 6), v_set(0.5f));
    const vec rest = v_fma(v_mul(r, r), square, r);
    const vec whole = v_lookup(sixteenths, shifted);

    /* v_scale() rounds n down. */
    return v_scale(v_fma(whole, rest, whole), n);
}

/*
 * f(x) - 1/2 of an odd f(x) - 1/2, from its table in normal_tables.h. Infinite x and
 * NaN have those of the last piece.
 */
INLINE vec v_half(vec x, const float terms[5][2 * LANES], float per_unit)
{
    const vec a = v_magnitude(x, v_set((2 * LANES - 1) / per_unit));
    const vec piece = v_fma(a, v_set(per_unit), v_set(0x1.8p23f));
    const vec r = v_fma(a, v_set(per_unit), v_sub(v_set(0x1.8p23f), piece));
    vec sum = v_lookup_32(terms[4], piece);

#pragma GCC unroll 4
    for (int i = 3; i >= 0; i--)
        sum = v_fma(sum, r, v_lookup_32(terms[i], piece));
    return v_flip(sum, x);
}

/* The normal distribution's integral up to x, absolute error 2^-23. */
INLINE vec v_normal_quick(vec x)
{
    return v_add(v_half(x, half_normal_terms_32, half_normal_per_unit_32), v_set(0.5f));
}

/* The derivative of x times that, absolute error 2^-23; NaN where x is infinite. */
INLINE vec v_gelu_slope_quick(vec x)
{
    const vec half = v_fma(x, v_zero(), v_set(0.5f));

    return v_add(v_half(x, half_slope_terms_32, half_slope_per_unit_32), half);
}

/* 1 / x for finite normal numbers, 1 ulp; NaN of what is infinite. */
INLINE vec v_reciprocal(vec x)
{
    const vec near = PS(rcp14)(x);

    return v_fma(near, v_fnma(x, near, v_set(1)), near);
}

#else

#define v_reciprocal(x)    v_div(v_set(1), x)
#define v_exp_quick        v_exp
#define v_normal_quick     v_normal
#define v_gelu_slope_quick v_gelu_slope

#endif

/* 1 + exp(-x), whose reciprocal is sigmoid(x); inf where x is below -88. */
INLINE vec v_sigmoid_divisor(vec x)
{
    return v_add(v_set(1), v_exp_quick(v_min(v_set(90), v_sub(v_zero(), x))));
}

/* 0 where exp(-x) is larger than floats are, as by ATen's formula. */
INLINE vec v_sigmoid_quick(vec x)
{
    const vec most = v_set(0x1.62e42ep6f); /* log(FLT_MAX) */
    const vec e = v_exp_quick(v_min(most, v_sub(v_zero(), x)));
    const vec sigmoid = v_reciprocal(v_add(v_set(1), e));

    return v_pick(v_less(x, v_sub(v_zero(), most)), v_zero(), sigmoid);
}

#endif
