/*
 * lanes.h - float lanes: one vocabulary, so that one text serves every instruction set.
 *
 * lanes_<isa>.h includes this, and one of them is included in a file. It defines
 *
 *   TARGET, VECTOR, LANES    attribute that permits its instructions; their prefix
 *   vec, vec_f64, ints, mask lanes of float, double, int32; a truth value a lane
 *   v_all(n)                 whether n is LANES, where asking is worth it
 *   v_first(n), v_between(a, b)  the first n lanes; those of [a, b), 0 <= a, b <= LANES
 *   v_load_where(p, m)       the lanes of m, no memory elsewhere, where zeros are
 *   v_stream(p, v)           past the caches, see ops/math/stream.h; p is aligned, and
 *                            v_stream_end() comes before other threads may read
 *   v_zip_low(a, b), v_zip_high(a, b)   their lanes in turn: a vector, and the next one
 *   v_load_some(p, n), v_compare(a, b, how), v_low(v), v_high(v), v_permute
 *   v_fold(v)                lane by lane, the sum of its 128-bit parts
 *
 * and adds words of its own: v_store_first, v_scale, v_sum, v_largest, v_transpose.
 *
 *   v_load_first, v_store_first   the first n lanes; no memory behind them is touched
 *   v_store_two(p, low, high, n)  of two vectors, n > 0
 *   v_fma, v_fnma                 a * b + c and c - a * b, rounded once
 *   v_max, v_min                  b where either is NaN, so NaN in b stays
 *   v_scale(v, n)                 v * 2^n for a whole n, -250 < n < 250; rounded once
 *   v_widen(halves)               LANES bfloat16 as floats
 *   v_transpose(rows)             rows[i][j] and rows[j][i] change places
 */
#ifndef PTAC_OPS_MATH_LANES_H
#define PTAC_OPS_MATH_LANES_H

#include <stdint.h>

#define INLINE TARGET static inline __attribute__((always_inline))

#define JOIN_(a, b, c) a##b##_##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define PS(name)       JOIN(VECTOR, name, ps)
#define PD(name)       JOIN(VECTOR, name, pd)
#define EPI32(name)    JOIN(VECTOR, name, epi32)

#define v_zero          PS(setzero)
#define v_set           PS(set1)
#define v_load          PS(loadu)
#define v_store         PS(storeu)
#define v_add           PS(add)
#define v_sub           PS(sub)
#define v_mul           PS(mul)
#define v_div           PS(div)
#define v_fma           PS(fmadd)
#define v_fnma          PS(fnmadd)
#define v_max           PS(max)
#define v_min           PS(min)
#define v_less(a, b)    v_compare(a, b, _CMP_LT_OQ)
#define v_at_most(a, b) v_compare(a, b, _CMP_LE_OQ)
#define v_low_f64(v)    PD(cvtps)(v_low(v))
#define v_high_f64(v)   PD(cvtps)(v_high(v))
#define v_stream_end    _mm_sfence
#define v_widen(halves) ((vec)EPI32(slli)(EPI32(cvtepu16)(halves), 16))

/* For each vector of [begin, end), its n elements from i on; n varies in the last. */
#define FOR_LANES(i, n, begin, end, ...)                                               \
    do {                                                                               \
        const int64_t last_ = (end)-LANES;                                             \
        int64_t i = begin;                                                             \
                                                                                       \
        for (; i <= last_; i += LANES) {                                               \
            enum { n = LANES };                                                        \
            __VA_ARGS__;                                                               \
        }                                                                              \
        if (i < (end)) {                                                               \
            const int n = (int)((end)-i);                                              \
            __VA_ARGS__;                                                               \
        }                                                                              \
    } while (0)

INLINE int at_most_lanes(int64_t n)
{
    return n < LANES ? (int)n : LANES;
}

INLINE vec v_load_first(const float *p, int n)
{
    return v_all(n) ? v_load(p) : v_load_some(p, n);
}

/* Lanes [n, LANES) of v become those of other. */
INLINE vec v_keep_first(vec v, vec other, int n)
{
    return v_all(n) ? v : v_pick(v_first(n), v, other);
}

INLINE vec v_abs(vec v)
{
    return PS(andnot)(v_set(-0.0f), v);
}

/* The magnitude of v with the sign of s. */
INLINE vec v_with_sign(vec v, vec s)
{
    return PS(or)(v_abs(v), PS(and)(s, v_set(-0.0f)));
}

/* A positive normal v as m * 2^n with sqrt(1/2) <= m < sqrt(2); returns m. */
INLINE vec v_split(vec v, vec *n)
{
    const ints bits = (ints)v, half = EPI32(set1)(0x3f3504f3); /* sqrt(1/2) */
    const ints whole = EPI32(srai)(EPI32(sub)(bits, half), 23);

    *n = JOIN(VECTOR, cvtepi32, ps)(whole);
    return (vec)EPI32(sub)(bits, EPI32(slli)(whole, 23));
}

/* table[i], where the index i is in the low bits of a lane. */
INLINE vec v_lookup(const float table[LANES], vec index)
{
    return v_permute(v_load(table), (ints)index);
}

/* sums[i] += v[i] */
INLINE void v_add_to_f64(double *sums, vec v)
{
    double *rest = sums + LANES / 2;

    PD(storeu)(sums, PD(add)(PD(loadu)(sums), v_low_f64(v)));
    PD(storeu)(rest, PD(add)(PD(loadu)(rest), v_high_f64(v)));
}

INLINE double v_sum_f64(vec v)
{
    return v_total(PD(add)(v_low_f64(v), v_high_f64(v)));
}

/* sum + a * b. The halves join first: the sum then waits for one addition alone. */
INLINE vec_f64 v_dot(vec_f64 sum, vec a, vec b)
{
    const vec_f64 high = PD(mul)(v_high_f64(a), v_high_f64(b));

    return PD(add)(sum, PD(fmadd)(v_low_f64(a), v_low_f64(b), high));
}

#define v_store_two(p, low, high, n)                                                   \
    do {                                                                               \
        v_store_first(p, low, at_most_lanes(n));                                       \
        if ((n) > LANES)                                                               \
            v_store_first((p) + LANES, high, (n)-LANES);                               \
    } while (0)

/* Four rows after four, in each 128-bit part: v_transpose() but for these parts. */
INLINE void transpose_parts(vec rows[LANES])
{
    vec pairs[LANES];

#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = PS(unpacklo)(rows[i], rows[i + 1]);
        pairs[i + 1] = PS(unpackhi)(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 4) {
        rows[i] = PS(shuffle)(pairs[i], pairs[i + 2], 0x44);
        rows[i + 1] = PS(shuffle)(pairs[i], pairs[i + 2], 0xee);
        rows[i + 2] = PS(shuffle)(pairs[i + 1], pairs[i + 3], 0x44);
        rows[i + 3] = PS(shuffle)(pairs[i + 1], pairs[i + 3], 0xee);
    }
}

/* The sums of four vectors' lanes. */
INLINE __m128 v_sums_of_four(const vec v[4])
{
    const vec a = PS(add)(PS(unpacklo)(v[0], v[1]), PS(unpackhi)(v[0], v[1]));
    const vec b = PS(add)(PS(unpacklo)(v[2], v[3]), PS(unpackhi)(v[2], v[3]));

    return v_fold(PS(add)(PS(shuffle)(a, b, 0x44), PS(shuffle)(a, b, 0xee)));
}

#endif
