/*
 * mean_tpl.h - means of rows and of columns.
 *
 * Rows are read one after another, as they lie, into four vectors of partial sums; of
 * four short rows the lanes are added up together. Columns lie in lanes, and rows are
 * added to them.
 *
 * Included behind lanes_<isa>.h, once in a file. The includer also defines ISA, the
 * name of the row, and NEEDS, its PTAC_CPU_* bits.
 */
#include "ops/mean/mean.h"

enum {
    ROWS = 4,                        /* at once; also vectors of columns */
    WIDTH = ROWS * LANES,            /* columns at once */
    BLOCK = PTAC_MEAN_CHAIN * WIDTH, /* of a row, a chain in each of four vectors */
    TALL = PTAC_MEAN_CHAIN * PTAC_MEAN_CHAIN, /* rows whose chains add up in float */
};

/* --- rows ------------------------------------------------------------------------- */

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

TARGET static void means_of_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ((const ptac_mean *)call->params)->n;
    const float *x = call->inputs[0].data;
    float *y = call->outputs[0].data;
    int64_t i = begin;

    for (; n <= BLOCK && i + ROWS <= end; i += ROWS)
        _mm_storeu_ps(y + i, means_of_four(x + i * n, n, n));
    for (; n <= BLOCK && i < end; i++) /* a row four times, for the same bits */
        _mm_store_ss(y + i, means_of_four(x + i * n, n, 0));
    for (; i < end; i++)
        y[i] = sum_of_row(x + i * n, n) / (float)n;
}

/* --- columns ---------------------------------------------------------------------- */

/* The sums of n <= TALL rows, inner apart; each has n_vectors vectors of some lanes. */
INLINE void add_rows(const float *x, int64_t inner, int64_t n, int n_vectors, int some,
                     vec sums[ROWS])
{
#pragma GCC unroll 4
    for (int k = 0; k < n_vectors; k++)
        sums[k] = v_zero();
    for (int64_t begin = 0; begin < n; begin += PTAC_MEAN_CHAIN) {
        const int64_t end = ptac_least(n, begin + PTAC_MEAN_CHAIN);
        vec chains[ROWS];

#pragma GCC unroll 4
        for (int k = 0; k < n_vectors; k++)
            chains[k] = v_zero();
        for (int64_t i = begin; i < end; i++) {
#pragma GCC unroll 4
            for (int k = 0; k < n_vectors; k++)
                chains[k] =
                    v_add(chains[k], v_load_first(x + i * inner + k * LANES, some));
        }
#pragma GCC unroll 4
        for (int k = 0; k < n_vectors; k++)
            sums[k] = v_add(sums[k], chains[k]);
    }
}

/* Of any number of rows: from TALL to TALL in double. */
INLINE void means_of_vectors(const ptac_mean *p, const float *x, int n_vectors,
                             int some, float *y)
{
    const vec divisor = v_set((float)p->n);
    double totals[WIDTH] = {0};
    vec sums[ROWS] = {v_zero()};

    for (int64_t i = 0; i < p->n; i += TALL) {
        add_rows(x + i * p->inner, p->inner, ptac_least(p->n - i, TALL), n_vectors,
                 some, sums);
        for (int k = 0; k < n_vectors && p->n > TALL; k++)
            v_add_to_f64(totals + k * LANES, sums[k]);
    }
    for (int k = 0; k < n_vectors; k++) {
        float rounded[LANES];

        if (p->n > TALL) {
            for (int i = 0; i < LANES; i++)
                rounded[i] = (float)totals[k * LANES + i];
            sums[k] = v_load(rounded);
        }
        v_store_first(y + k * LANES, v_div(sums[k], divisor), some);
    }
}

/* Groups of WIDTH columns, [begin, end) of those of all images. */
TARGET static void means_of_columns(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_mean *p = call->params;
    const int64_t groups = ptac_parts(p->inner, WIDTH);

    for (int64_t i = begin; i < end; i++) {
        const int64_t image = i / groups, first = i % groups * WIDTH;
        const int64_t n_columns = ptac_least(p->inner - first, WIDTH);
        const float *x =
            (const float *)call->inputs[0].data + image * p->n * p->inner + first;
        float *y = (float *)call->outputs[0].data + image * p->inner + first;

        if (n_columns == WIDTH) {
            means_of_vectors(p, x, ROWS, LANES, y);
            continue;
        }
        FOR_LANES(k, some, 0, n_columns, means_of_vectors(p, x + k, 1, some, y + k));
    }
}

/* --- the row ---------------------------------------------------------------------- */

static ptac_status run(const ptac_call *call)
{
    const ptac_mean *p = call->params;

    if (p->inner == 1)
        ptac_share_means(call, p->outer, p->n, means_of_rows);
    else
        ptac_share_means(call, p->outer * ptac_parts(p->inner, WIDTH),
                         p->n * ptac_least(p->inner, WIDTH), means_of_columns);
    return PTAC_OK;
}

PTAC_ROW(MEAN, ISA, PTAC_CLOSE, NEEDS, ptac_mean_accepts, run)
