/*
 * sum_norm_tpl.h - bias, residual and norm of rows, a vector of floats at a time.
 *
 * Included behind layer_norm_tpl.h. The includer also defines
 *
 *   SUM_NORM_ROWS   the function: ptac_sum_norm_<isa>
 */
#include "ops/norm/layer/sum_norm.h"

INLINE void add_row(const ptac_sum_norm *job, int64_t row)
{
    const int64_t n = job->is.width;
    const float *x = job->x + row * n, *bias = job->bias;
    float *sum = job->sum + row * n;

    if (job->residual) {
        const float *residual = job->residual + row * n;

        FOR_LANES(i, some, 0, n,
                  const vec biased =
                      v_add(v_load_first(x + i, some), weight_or(bias, i, 0, some));
                  v_store_first(sum + i,
                                v_add(biased, v_load_first(residual + i, some)), some));
    } else {
        FOR_LANES(
            i, some, 0, n,
            v_store_first(sum + i,
                          v_add(v_load_first(x + i, some), weight_or(bias, i, 0, some)),
                          some));
    }
}

TARGET void SUM_NORM_ROWS(int64_t begin, int64_t end, void *context)
{
    const ptac_sum_norm *job = context;
    const int64_t n = job->is.width;

    for (int64_t row = begin; row < end; row++) {
        const float *x = job->x + row * n;

        if (job->sum) {
            add_row(job, row);
            x = job->sum + row * n;
        }
        if (job->y) {
            const row_place at = place_row(&job->is, x, false);

            normalize_row(x, n, &at, job->weight, job->bias_of_norm, job->y + row * n);
        }
    }
}
