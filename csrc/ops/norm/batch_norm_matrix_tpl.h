/*
 * batch_norm_matrix_tpl.h - a piece of a matrix whose columns are normalized.
 *
 * A part of batch_norm_tpl.h, which includes it. Of a few rows at a time all columns
 * are summed, vectors side by side down the rows.
 */
enum {
    FEW_ROWS = 8, /* that the first cache holds, however far apart */
    NEAR = 16384, /* elements of rows that are more */
};

/* sums[0] and sums[per_sum] on += those of n lanes. */
INLINE void add_to_sums(double *sums, int64_t per_sum, const lane_sums *s, int n)
{
    const vec_f64 of[2][2] = {{s->first_low, s->first_high},
                              {s->second_low, s->second_high}};

    for (int k = 0; k < 2; k++, sums += per_sum) {
        if (n == LANES) {
            double *rest = sums + LANES / 2;

            PD(storeu)(sums, PD(add)(PD(loadu)(sums), of[k][0]));
            PD(storeu)(rest, PD(add)(PD(loadu)(rest), of[k][1]));
        } else {
            double some[LANES];

            PD(storeu)(some, of[k][0]);
            PD(storeu)(some + LANES / 2, of[k][1]);
            for (int i = 0; i < n; i++)
                sums[i] += some[i];
        }
    }
}

/*
 * Of a few rows from x on, the sums of the first n lanes; forward they are taken from
 * the rows' own mean, in float, and moved to the center in double.
 */
INLINE void sum_squares_of(const float *x, int64_t stride, int64_t n_rows,
                           const float *center, int n_side, int n, double *sums,
                           int64_t per_sum)
{
    const vec share = v_set(1 / (float)n_rows);
    const vec_f64 count = PD(set1)((double)n_rows);
    vec mean[N_SIDE];
    few_sums few[N_SIDE];

#pragma GCC unroll 4
    for (int k = 0; k < n_side; k++)
        mean[k] = v_zero();
    for (int64_t row = 0; row < n_rows; row++)
#pragma GCC unroll 4
        for (int k = 0; k < n_side; k++) {
            const float *p = x + row * stride + k * LANES;

            _mm_prefetch(p + n_rows * stride, _MM_HINT_T1);
            mean[k] = v_add(mean[k], v_load_first(p, n));
        }
#pragma GCC unroll 4
    for (int k = 0; k < n_side; k++) {
        const vec own = v_mul(mean[k], share),
                  from = v_load_first(center + k * LANES, n);

        /* An infinite mean would make NaN of what is infinite. */
        mean[k] = v_pick(v_less(v_abs(own), v_set(INFINITY)), own, from);
        few[k] = (few_sums){v_zero(), v_zero()};
    }
    for (int64_t row = 0; row < n_rows; row++)
#pragma GCC unroll 4
        for (int k = 0; k < n_side; k++) {
            const vec away =
                v_sub(v_load_first(x + row * stride + k * LANES, n), mean[k]);

            few[k].first = v_add(few[k].first, away);
            few[k].second = v_fma(away, away, few[k].second);
        }
#pragma GCC unroll 4
    for (int k = 0; k < n_side; k++) {
        const vec from = v_load_first(center + k * LANES, n);
        const vec_f64 moved[] = {PD(sub)(v_low_f64(mean[k]), v_low_f64(from)),
                                 PD(sub)(v_high_f64(mean[k]), v_high_f64(from))};
        const vec_f64 first[] = {v_low_f64(few[k].first), v_high_f64(few[k].first)};
        const vec_f64 second[] = {v_low_f64(few[k].second), v_high_f64(few[k].second)};
        vec_f64 sum[2], squares[2];

        for (int i = 0; i < 2; i++) {
            sum[i] = PD(fmadd)(count, moved[i], first[i]);
            squares[i] = PD(fmadd)(moved[i], PD(add)(first[i], sum[i]), second[i]);
        }

        const lane_sums s = {sum[0], sum[1], squares[0], squares[1]};

        add_to_sums(sums + k * LANES, per_sum, &s, n);
    }
}

INLINE void sum_products_of(const ptac_batch_norm_job *job, int64_t column,
                            const float *x, const float *grad, int64_t n_rows,
                            int n_side, int n, ptac_act act, double *sums,
                            int64_t per_sum)
{
    const int64_t stride = job->n_columns;
    float *kept = job->grad_z ? job->grad_z + (x - job->x) : NULL;
    few_sums few[N_SIDE];
    columns of[N_SIDE];

#pragma GCC unroll 4
    for (int k = 0; k < n_side; k++) {
        few[k] = (few_sums){v_zero(), v_zero()};
        of[k] = columns_of(job, column + k * LANES, n, false, true, act);
    }
    for (int64_t row = 0; row < n_rows; row++)
#pragma GCC unroll 4
        for (int k = 0; k < n_side; k++) {
            const int64_t at = row * stride + k * LANES;

            _mm_prefetch(x + at + n_rows * stride, _MM_HINT_T1);
            _mm_prefetch(grad + at + n_rows * stride, _MM_HINT_T1);
            add_products(&few[k], v_load_first(x + at, n), v_load_first(grad + at, n),
                         &of[k], act, kept ? kept + at : NULL, n);
        }
#pragma GCC unroll 4
    for (int k = 0; k < n_side; k++) {
        lane_sums s = no_sums();

        add_few(&s, few[k]);
        add_to_sums(sums + k * LANES, per_sum, &s, n);
    }
}

INLINE void sum_rows(const ptac_batch_norm_job *job, int64_t block, int64_t part,
                     bool is_backward, ptac_act act, double *sums)
{
    const int64_t stride = job->n_columns, first = block * job->per_block;
    const int64_t n = ptac_block_columns(job, block), end = ptac_part_end(job, part);
    const float *center = job->center + first;
    const int64_t near = NEAR / stride, least = near < FEW_ROWS ? FEW_ROWS : near;
    const int64_t at_once = ptac_least(least, N_FLOAT);

    for (int64_t c = 0; c < 2 * n; c++)
        sums[c] = 0;
    for (int64_t row = ptac_part_begin(job, part); row < end; row += at_once) {
        const int64_t n_rows = ptac_least(at_once, end - row);
        const float *x = job->x + row * stride + first;
        const float *grad = is_backward ? job->grad + row * stride + first : NULL;
        int64_t c = 0;

#define SUM_COLUMN(at, n_side, some)                                                   \
    if (is_backward)                                                                   \
        sum_products_of(job, first + (at), x + (at), grad + (at), n_rows, n_side,      \
                        some, act, sums + (at), n);                                    \
    else                                                                               \
        sum_squares_of(x + (at), stride, n_rows, center + (at), n_side, some,          \
                       sums + (at), n)
        for (; c + N_SIDE * LANES <= n; c += N_SIDE * LANES) {
            SUM_COLUMN(c, N_SIDE, LANES);
        }
        FOR_LANES(k, some, c, n, SUM_COLUMN(k, 1, some));
#undef SUM_COLUMN
    }
}

INLINE void apply_to_rows(const ptac_batch_norm_job *job, int64_t block, int64_t part,
                          bool is_backward, ptac_act act)
{
    const int64_t first = block * job->per_block, n = ptac_block_columns(job, block);
    const int64_t begin = ptac_part_begin(job, part);

    for (int64_t row = ptac_part_end(job, part); row-- > begin;) {
        const int64_t at = row * job->n_columns + first;
        const float *x = job->from + at,
                    *grad = is_backward ? grads_of(job, act) + at : NULL;

        FOR_LANES(c, some, 0, n, {
            const columns of =
                columns_of(job, first + c, some, false, is_backward, act);

            put_lanes(job->result + at + c, x + c, is_backward ? grad + c : NULL, &of,
                      some, act, false);
        });
    }
}
