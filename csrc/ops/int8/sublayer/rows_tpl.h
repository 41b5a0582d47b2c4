/*
 * rows_tpl.h - what happens to rows between int8 products, LANES numbers at a time.
 * The includer has included isa_tpl.h; int8_ref.c has the same number by number.
 */
#include "ops/int8/sublayer/rows.h"
#include "ops/math/math_tpl.h"

INLINE vec gelu_of(vec z)
{
    const vec most = v_set(PTAC_GELU_MOST), size = v_min(most, v_abs(z));
    const vec k = v_div(v_set(1), v_fma(size, v_set(PTAC_GELU_P), v_set(1)));
    vec sum = v_set(ptac_gelu_terms[4]);

#pragma GCC unroll 4
    for (int i = 3; i >= 0; i--)
        sum = v_fma(sum, k, v_set(ptac_gelu_terms[i]));
    sum = v_mul(v_mul(sum, k), v_exp_bounded(v_mul(v_mul(size, size), v_set(-0.5f))));
    sum = v_pick(v_less(most, v_abs(z)), v_zero(), sum);
    return v_mul(z, v_pick(v_less(z, v_zero()), sum, v_sub(v_set(1), sum)));
}

TARGET static void gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int some = at_most_lanes(n - i);

        v_store_first(x + i, gelu_of(v_load_first(x + i, some)), some);
    }
}

TARGET static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const int some = at_most_lanes(n - i);

        v_store_first(
            y + i, v_add(v_load_first(y + i, some), v_load_first(x + i, some)), some);
    }
}

enum {
    NORM_VECTORS = PTAC_NORM_SUMS / LANES,
};

INLINE float norm_total(vec sums[NORM_VECTORS])
{
    for (int half = NORM_VECTORS / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] = v_add(sums[i], sums[i + half]);
    return v_sum(sums[0]);
}

/* For each vector of a row: some of its numbers are x's, and j is where they add up. */
#define FOR_SUMS(j, x_i, some, ...)                                                    \
    do {                                                                               \
        int64_t i_ = 0;                                                                \
                                                                                       \
        for (; i_ + PTAC_NORM_SUMS <= n; i_ += PTAC_NORM_SUMS)                         \
            for (int j = 0; j < NORM_VECTORS; j++) {                                   \
                const float *x_i = x + i_ + j * LANES;                                 \
                enum { some = LANES };                                                 \
                __VA_ARGS__;                                                           \
            }                                                                          \
        for (int j = 0; i_ < n; i_ += LANES, j++) {                                    \
            const float *x_i = x + i_;                                                 \
            const int some = at_most_lanes(n - i_);                                    \
                                                                                       \
            __VA_ARGS__;                                                               \
        }                                                                              \
    } while (0)

TARGET static void norm(const ptac_int8_norm *how, const float *x, int64_t n, float *y)
{
    vec sums[NORM_VECTORS], squares[NORM_VECTORS], mean, by;

    for (int j = 0; j < NORM_VECTORS; j++)
        sums[j] = squares[j] = v_zero();
    FOR_SUMS(j, x_i, some, sums[j] = v_add(sums[j], v_load_first(x_i, some)));
    mean = v_set(norm_total(sums) / (float)n);
    FOR_SUMS(j, x_i, some,
             const vec away =
                 v_keep_first(v_sub(v_load_first(x_i, some), mean), v_zero(), some);
             squares[j] = v_fma(away, away, squares[j]));
    by = v_set(1.0f / sqrtf(norm_total(squares) / (float)n + how->eps));
    for (int64_t i = 0; i < n; i += LANES) {
        const int some = at_most_lanes(n - i);
        const vec w = how->weight ? v_load_first(how->weight + i, some) : v_set(1);
        const vec b = how->bias ? v_load_first(how->bias + i, some) : v_zero();
        const vec away = v_sub(v_load_first(x + i, some), mean);

        v_store_first(y + i, v_fma(v_mul(away, by), w, b), some);
    }
}
