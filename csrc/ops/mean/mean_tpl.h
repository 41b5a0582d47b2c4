/*
 * mean_tpl.h - means of rows and of columns.
 *
 * Columns lie in lanes, and rows are added to them; means of rows are in
 * mean_rows_tpl.h.
 *
 * Included behind lanes_<isa>.h, once in a file. The includer also defines ISA, the
 * name of the row, and NEEDS, its PTAC_CPU_* bits.
 */
#include "ops/mean/mean_rows_tpl.h"

enum {
    TALL = PTAC_MEAN_CHAIN * PTAC_MEAN_CHAIN, /* rows whose chains add up in float */
};

TARGET static void means_of_rows(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const int64_t n = ((const ptac_mean *)call->params)->n;

    means_of_rows_at(call->inputs[0].data, begin, end, n, call->outputs[0].data);
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
