/*
 * bias_act_tpl.h - bias, activation and their gradient.
 *
 * Expects the words of lanes.h. Leaves ROW(name), a ptac_bias_act.
 * Functions that take the activation are inlined into one function for each.
 */
#include "ops/linear/act_tpl.h"
#include "ops/linear/bias_act.h"

INLINE vec grad_of(vec g, const float *saved, int n, ptac_act act)
{
    return act == PTAC_ACT_NONE ? g : act_gradient(g, v_load_first(saved, n), act);
}

INLINE void forward_lanes(const ptac_act_forward *job, float *z, const float *bias,
                          float *y, int n, ptac_act act)
{
    vec sum = v_load_first(z, n);

    if (bias)
        sum = v_add(sum, v_load_first(bias, n));
    if (job->keep_z)
        v_store_first(z, sum, n);
    v_store_first(y, act_of(sum, act), n);
}

INLINE void forward_rows(const ptac_act_forward *job, int64_t begin, int64_t end,
                         ptac_act act)
{
    const int64_t n = job->n_cols;

    for (int64_t i = begin; i < end; i++) {
        float *z = job->z + i * job->ldz, *y = job->y + i * job->ldy;
        const float *bias = job->bias;

        FOR_LANES(j, some, 0, n,
                  forward_lanes(job, z + j, bias ? bias + j : NULL, y + j, some, act));
    }
}

/* Elements at, at + 1 ... of the gradient, which are also stored. */
INLINE vec backward_lanes(const ptac_act_backward *job, int64_t at, int n, ptac_act act)
{
    const vec g = v_load_first(job->g + at, n);
    const float *saved = act == PTAC_ACT_NONE ? NULL : job->saved + at;
    const vec gz = grad_of(g, saved, n, act);

    if (act != PTAC_ACT_NONE || job->gz)
        v_store_first(job->gz + at, gz, n);
    return gz;
}

INLINE void backward_elements(const ptac_act_backward *job, int64_t begin, int64_t end,
                              ptac_act act)
{
    FOR_LANES(i, some, begin, end, backward_lanes(job, i, some, act));
}

/* Adds n columns of n_rows rows to sums. */
INLINE void add_rows(const ptac_act_backward *job, int64_t at, int n_rows, int n,
                     float *sums, ptac_act act)
{
    vec sum = v_load(sums);

#pragma GCC unroll 4
    for (int i = 0; i < n_rows; i++)
        sum = v_add(sum, backward_lanes(job, at + i * job->n_cols, n, act));
    v_store(sums, sum);
}

INLINE void add_row_group(const ptac_act_piece *piece, int64_t row, int n_rows,
                          float *sums, ptac_act act)
{
    const int64_t at = row * piece->job->n_cols + piece->column;

    FOR_LANES(j, some, 0, piece->n_columns,
              add_rows(piece->job, at + j, n_rows, some, sums + j, act));
}

INLINE void backward_piece(const ptac_act_piece *piece, double *totals, ptac_act act)
{
    const int n = piece->n_columns;
    float sums[PTAC_ACT_PANEL];

    for (int j = 0; j < PTAC_ACT_PANEL; j++)
        totals[j] = 0;
    for (int64_t block = piece->row; block < piece->last_row;
         block += PTAC_ACT_ROW_BLOCK) {
        const int64_t end = block + PTAC_ACT_ROW_BLOCK;
        const int64_t last = end < piece->last_row ? end : piece->last_row;
        int64_t i = block;

        for (int j = 0; j < n; j += LANES)
            v_store(sums + j, v_zero());
        for (; i + 4 <= last; i += 4)
            add_row_group(piece, i, 4, sums, act);
        for (; i < last; i++)
            add_row_group(piece, i, 1, sums, act);
        for (int j = 0; j < n; j += LANES)
            v_add_to_f64(totals + j, v_load(sums + j));
    }
}

#define DEFINE_ACT(name, act)                                                          \
    TARGET static void forward_##name(int64_t begin, int64_t end, void *context)       \
    {                                                                                  \
        forward_rows(context, begin, end, act);                                        \
    }                                                                                  \
    TARGET static void elements_##name(int64_t begin, int64_t end, void *context)      \
    {                                                                                  \
        backward_elements(context, begin, end, act);                                   \
    }                                                                                  \
    TARGET static void piece_##name(const ptac_act_piece *piece, double *totals)       \
    {                                                                                  \
        backward_piece(piece, totals, act);                                            \
    }

DEFINE_ACT(none, PTAC_ACT_NONE)
DEFINE_ACT(relu, PTAC_ACT_RELU)
DEFINE_ACT(gelu, PTAC_ACT_GELU)
DEFINE_ACT(gelu_tanh, PTAC_ACT_GELU_TANH)
DEFINE_ACT(silu, PTAC_ACT_SILU)
DEFINE_ACT(tanh, PTAC_ACT_TANH)
DEFINE_ACT(sigmoid, PTAC_ACT_SIGMOID)

#define ALL_ACTS(prefix)                                                               \
    {                                                                                  \
        prefix##none, prefix##relu, prefix##gelu, prefix##gelu_tanh, prefix##silu,     \
            prefix##tanh, prefix##sigmoid                                              \
    }

#define ROW(name)                                                                      \
    {                                                                                  \
        name, ALL_ACTS(forward_), ALL_ACTS(elements_), ALL_ACTS(piece_)                \
    }
