/*
 * softmax_tpl.h - the pieces that softmax, log-softmax and cross-entropy are made of.
 *
 * A template whose parameters are LANES and the words of lanes.h: it is included behind
 * lanes_<isa>.h, once in a file. Long rows are walked one by one; of short rows LANES
 * are turned on their side together, so that a lane holds a row and nothing is left
 * over at a row's end.
 *
 * A NaN in a row reaches the row's sum of exponentials, and through it every result
 * of the row, as do +inf and a row of nothing but -inf.
 */
#ifndef PTAC_OPS_SOFTMAX_SOFTMAX_TPL_H
#define PTAC_OPS_SOFTMAX_SOFTMAX_TPL_H

#include "ops/softmax/softmax.h"
#include "ops/math/math_tpl.h"

/*
 * float sums run over this many elements before they go on in double: equal elements
 * round the same way each time, so the error of long sums does not average out.
 */
enum {
    SUM_BLOCK = 32 * LANES,
};

INLINE float row_max(const float *x, int64_t n)
{
    const vec lowest = v_set(-INFINITY);
    vec a = lowest, b = lowest, c = lowest, d = lowest;
    int64_t i = 0;

    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a = v_max(a, v_load(x + i));
        b = v_max(b, v_load(x + i + LANES));
        c = v_max(c, v_load(x + i + 2 * LANES));
        d = v_max(d, v_load(x + i + 3 * LANES));
    }
    FOR_LANES(j, some, i, n,
              a = v_max(a, v_keep_first(v_load_first(x + j, some), lowest, some)));
    return v_largest(v_max(v_max(a, b), v_max(c, d)));
}

/*
 * exp(x[i] - *max), or x[i] where max is NULL, of n lanes; 0 in the others, whose
 * exponential may be anything.
 */
INLINE vec term_first(const float *x, const vec *max, int n)
{
    const vec v = v_load_first(x, n);

    return max ? v_keep_first(v_exp_bounded(v_sub(v, *max)), v_zero(), n) : v;
}

/* The sum of these terms, each of which also goes to out unless that is NULL. */
INLINE double row_sum(const float *x, int64_t n, const vec *max, float *out)
{
    double sum = 0;

    for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const int64_t end = ptac_least(n, begin + SUM_BLOCK);
        vec a = v_zero(), b = v_zero();
        int64_t i = begin;

        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            const vec e = term_first(x + i, max, LANES);
            const vec f = term_first(x + i + LANES, max, LANES);

            a = v_add(a, e);
            b = v_add(b, f);
            if (out) {
                v_store(out + i, e);
                v_store(out + i + LANES, f);
            }
        }
        for (; i < end; i += LANES) {
            const int rest = at_most_lanes(end - i);
            const vec e = term_first(x + i, max, rest);

            a = v_add(a, e);
            if (out)
                v_store_first(out + i, e, rest);
        }
        sum += v_sum_f64(v_add(a, b));
    }
    return sum;
}

/* out[i] = x[i] * factor; the two may be the same. */
INLINE void row_multiply(const float *x, int64_t n, float factor, float *out)
{
    const vec factors = v_set(factor);
    int64_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const vec a = v_mul(v_load(x + i), factors);
        const vec b = v_mul(v_load(x + i + LANES), factors);

        v_store(out + i, a);
        v_store(out + i + LANES, b);
    }
    FOR_LANES(j, some, i, n,
              v_store_first(out + j, v_mul(v_load_first(x + j, some), factors), some));
}

/*
 * n <= LANES rows of width <= PTAC_SHORT_ROW, turned: columns[j] has element j of each.
 * Lanes without a row get zeros. columns has room for PTAC_SHORT_ROW.
 */
INLINE void load_columns(const float *x, int64_t width, int n, vec *columns)
{
    if (width < 1)
        __builtin_unreachable(); /* no row is empty */
    for (int64_t j = 0; j < width; j += LANES) {
        const int rest = at_most_lanes(width - j);

        for (int i = 0; i < LANES; i++)
            columns[j + i] = i < n ? v_load_first(x + i * width + j, rest) : v_zero();
        v_transpose(columns + j);
    }
}

/* The reverse; what columns held is lost. */
INLINE void store_columns(float *out, int64_t width, int n, vec *columns)
{
    for (int64_t j = 0; j < width; j += LANES) {
        const int rest = at_most_lanes(width - j);

        v_transpose(columns + j);
        for (int i = 0; i < n; i++)
            v_store_first(out + i * width + j, columns[j + i], rest);
    }
}

INLINE vec columns_max(const vec *columns, int64_t width)
{
    vec max = columns[0];

    for (int64_t j = 1; j < width; j++)
        max = v_max(max, columns[j]);
    return max;
}

/* exps[j] = exp(columns[j] - max); the two may be the same. */
INLINE void columns_exp(const vec *columns, int64_t width, vec max, vec *exps)
{
    for (int64_t j = 0; j < width; j++)
        exps[j] = v_exp_bounded(v_sub(columns[j], max));
}

/*
 * Sums of rows, as a tree: one after the other, small exponentials would each be
 * rounded against the largest, all in the same direction.
 */
INLINE vec columns_sum(const vec *columns, int64_t width)
{
    vec sums[PTAC_SHORT_ROW / 2 + 1];
    int64_t n = width / 2;

    if (width == 1)
        return columns[0];
    for (int64_t j = 0; j < n; j++)
        sums[j] = v_add(columns[2 * j], columns[2 * j + 1]);
    if (width % 2)
        sums[n++] = columns[width - 1];
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t j = 0; j < n / 2; j++)
            sums[j] = v_add(sums[2 * j], sums[2 * j + 1]);
        if (n % 2)
            sums[n / 2] = sums[n - 1];
    }
    return sums[0];
}

#endif
