/*
 * mean_rows_tpl.h - means of rows that lie one behind the other.
 *
 * Rows are read one after another, as they lie, into four vectors of partial sums; of
 * four short rows the lanes are added up together.
 *
 * Included behind lanes_<isa>.h, once in a file.
 */
#include "ops/mean/mean.h"

enum {
    ROWS = 4,                        /* at once; also vectors of columns */
    WIDTH = ROWS * LANES,            /* columns at once */
    BLOCK = PTAC_MEAN_CHAIN * WIDTH, /* of a row, a chain in each of four vectors */
};

/* A block's elements, LANES partial sums of them. */
INLINE vec sums_of_block(const float *x, int64_t n)
{
    vec a = v_zero(), b = v_zero(), c = v_zero(), d = v_zero();
    int64_t i = 0;

    for (; i + ROWS * LANES <= n; i += ROWS * LANES) {
        a = v_add(a, v_load(x + i));
        b = v_add(b, v_load(x + i + LANES));
        c = v_add(c, v_load(x + i + 2 * LANES));
        d = v_add(d, v_load(x + i + 3 * LANES));
    }
    a = v_add(v_add(a, b), v_add(c, d));
    b = v_zero();
    FOR_LANES(j, some, i, n, b = v_add(b, v_load_first(x + j, some)));
    return v_add(a, b);
}

/* Means of four rows of at most BLOCK elements, which are apart. */
INLINE __m128 means_of_four(const float *x, int64_t n, int64_t apart)
{
    vec sums[ROWS];

#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
        sums[r] = sums_of_block(x + r * apart, n);
    return _mm_div_ps(v_sums_of_four(sums), _mm_set1_ps((float)n));
}

INLINE float sum_of_row(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i += BLOCK)
        sum += v_sum_f64(sums_of_block(x + i, ptac_least(n - i, BLOCK)));
    return (float)sum;
}

/* Of rows [begin, end) of n elements each. */
INLINE void means_of_rows_at(const float *x, int64_t begin, int64_t end, int64_t n,
                             float *y)
{
    int64_t i = begin;

    for (; n <= BLOCK && i + ROWS <= end; i += ROWS)
        _mm_storeu_ps(y + i, means_of_four(x + i * n, n, n));
    for (; n <= BLOCK && i < end; i++) /* a row four times, for the same bits */
        _mm_store_ss(y + i, means_of_four(x + i * n, n, 0));
    for (; i < end; i++)
        y[i] = sum_of_row(x + i * n, n) / (float)n;
}
