/*
 * squeeze_excite_tpl.h - squeeze-and-excitation, vectors of floats at a time.
 *
 * Included behind lanes_<isa>.h, once in a file. The includer also defines ISA, the
 * name of the row, and NEEDS, its PTAC_CPU_* bits.
 */
#include "ops/linear/act_tpl.h"
#include "ops/mean/mean_rows_tpl.h"
#include "ops/squeeze_excite/squeeze_excite.h"

TARGET static void squeeze(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const int64_t n = all->p->n_places;

    means_of_rows_at(all->x, begin, end, n, all->means);
}

enum {
    AHEAD = 8192, /* floats between what is read and what is fetched */
};

/* Four rows of a matrix, apart, by a vector; fetched as dot_fetch() does. */
INLINE __m128 products_of_four(const float *rows, int64_t apart, const float *by,
                               int64_t n)
{
    vec sums[ROWS] = {v_zero(), v_zero(), v_zero(), v_zero()};

    FOR_LANES(i, some, 0, n, {
        const vec v = v_load_first(by + i, some);

        _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++)
        {
            const float *at = rows + r * apart + i;

            _mm_prefetch(at + AHEAD, _MM_HINT_T1);
            sums[r] = v_fma(v_load_first(at, some), v, sums[r]);
        }
    });
    return v_sums_of_four(sums);
}

/* Rows [begin, end) of a matrix with n columns by a vector; one like four, for bits. */
INLINE void multiply_rows(const float *matrix, int64_t begin, int64_t end, int64_t n,
                          const float *by, float *to)
{
    int64_t k = begin;

    for (; k + ROWS <= end; k += ROWS)
        _mm_storeu_ps(to + k, products_of_four(matrix + k * n, n, by, n));
    for (; k < end; k++)
        _mm_store_ss(to + k, products_of_four(matrix + k * n, 0, by, n));
}

INLINE vec shifted(const float *sums, const float *bias, int64_t i, int n)
{
    const vec sum = v_load_first(sums + i, n);

    return bias ? v_add(sum, v_load_first(bias + i, n)) : sum;
}

TARGET static void hide(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const ptac_squeeze_excite *p = all->p;

    for (int64_t i = 0; i < p->n; i++) {
        float *to = all->hidden + i * p->n_hidden;

        multiply_rows(all->w1, begin, end, p->n_channels,
                      all->means + i * p->n_channels, to);
        FOR_LANES(k, some, begin, end, {
            const vec z = shifted(to, all->b1, k, some);
            const vec value = p->act == PTAC_ACT_RELU   ? v_max(v_zero(), z)
                              : p->act == PTAC_ACT_SILU ? v_mul(z, v_sigmoid(z))
                                                        : z;

            v_store_first(to + k, value, some);
        });
    }
}

INLINE vec gate_of(vec z, bool is_hard)
{
    const vec inner = v_min(v_set(6), v_max(v_zero(), v_add(z, v_set(3))));

    return is_hard ? v_mul(inner, v_set(1.0f / 6)) : v_sigmoid(z);
}

INLINE void weigh(const float *x, float by, int64_t n, float *y)
{
    const vec gate = v_set(by);

    FOR_LANES(i, some, 0, n,
              v_store_first(y + i, v_mul(v_load_first(x + i, some), gate), some));
}

TARGET static void excite(int64_t begin, int64_t end, void *context)
{
    const ptac_excitement *all = context;
    const ptac_squeeze_excite *p = all->p;

    for (int64_t i = 0; i < p->n; i++) {
        const int64_t image = i * p->n_channels;
        float *gates = all->gates + image;

        multiply_rows(all->w2, begin, end, p->n_hidden, all->hidden + i * p->n_hidden,
                      gates);
        FOR_LANES(c, some, begin, end,
                  v_store_first(gates + c,
                                gate_of(shifted(gates, all->b2, c, some), p->is_hard),
                                some));
        for (int64_t c = begin; c < end; c++)
            weigh(all->x + (image + c) * p->n_places, gates[c], p->n_places,
                  all->y + (image + c) * p->n_places);
    }
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_excite_stages stages = {squeeze, hide, excite};

    return ptac_excite_run(call, &stages);
}

PTAC_ROW(SQUEEZE_EXCITE, ISA, PTAC_CLOSE, NEEDS, ptac_excite_accepts, run)
