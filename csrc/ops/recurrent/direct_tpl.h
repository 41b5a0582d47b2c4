/*
 * direct_tpl.h - a step's products with weights as they lie, for few rows.
 *
 * Each weight is read once for each row: to lay panels out takes as long as four rows
 * do. Forward a vector of units is a dot product for each, added up by a transposition;
 * backward the columns lie side by side.
 */
#include "ops/recurrent/step_tiles_tpl.h"

enum {
    DIRECT_ROWS = 4, /* of all steps, at most */
};

/* Weights of a vector of units in a gate, and the numbers that they multiply. */
typedef struct direct_terms {
    const float *w, *x;
    int64_t n; /* terms; also how far units lie apart */
} direct_terms;

/* Four units' sums from one vector of terms. */
INLINE void add_four(const float *w, int64_t stride, vec x, int count, vec sums[4])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sums[i] = v_fma(v_load_first(w + i * stride, count), x, sums[i]);
}

/* LANES units; their sums lane by lane. */
INLINE void add_direct(const direct_terms *t, vec sums[LANES])
{
    FOR_LANES(k, count, (int64_t)0, t->n, {
        const vec x = v_load_first(t->x + k, count);

#pragma GCC unroll 4
        for (int i = 0; i < LANES; i += 4)
            add_four(t->w + k + i * t->n, t->n, x, count, sums + i);
    });
}

/* One unit. */
INLINE float direct_unit(const direct_terms *t, int64_t unit)
{
    _Alignas(64) float lanes[LANES];
    const float *w = t->w + unit * t->n;
    vec sums = v_zero();
    float sum = 0;

    FOR_LANES(
        k, count, (int64_t)0, t->n,
        sums = v_fma(v_load_first(w + k, count), v_load_first(t->x + k, count), sums));
    v_store(lanes, sums);
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* The sums of n_units <= LANES units of both products; NULL: of the other alone. */
TARGET static void direct_sums(const direct_terms *a, const direct_terms *b,
                               int n_units, const float *bias, float *to)
{
    vec sums[LANES];

    if (n_units < LANES) {
        for (int i = 0; i < LANES; i++)
            to[i] = bias[i] + (a && i < n_units ? direct_unit(a, i) : 0) +
                    (b && i < n_units ? direct_unit(b, i) : 0);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        sums[i] = v_zero();
    if (a)
        add_direct(a, sums);
    if (b)
        add_direct(b, sums);
    v_transpose(sums);
#pragma GCC unroll 4
    for (int n = LANES / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            sums[i] = v_add(sums[i], sums[i + n]);
    v_store(to, v_add(v_load(bias), sums[0]));
}

/* sums += terms times columns of w, n_terms rows of n; n_vectors is a constant. */
INLINE void add_columns_of(const float *w, int64_t n, const float *terms,
                           int64_t n_terms, int n_vectors, int last, float *sums)
{
    for (int64_t begin = 0; begin < n_terms; begin += PART_TERMS) {
        const int64_t end = ptac_least(n_terms, begin + PART_TERMS);
        vec part[TILE_VECTORS];

#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            part[v] = v_zero();
        for (int64_t k = begin; k < end; k++) {
            const vec term = v_set(terms[k]);
            const float *from = w + k * n;

#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++)
                part[v] = v_fma(
                    term,
                    v_load_first(from + v * LANES, v < n_vectors - 1 ? LANES : last),
                    part[v]);
        }
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            v_store(sums + v * LANES, v_add(v_load(sums + v * LANES), part[v]));
    }
}

/* The same for all rows of a tile and a panel; w has n_left columns from it on. */
TARGET static void add_columns(const float *w, int64_t n, int64_t n_left,
                               int64_t n_terms, tile *t)
{
    const int n_vectors = (int)ptac_least(ptac_parts(n_left, LANES), TILE_VECTORS);
    const int last = at_most_lanes(n_left - (n_vectors - 1) * LANES);

    for (int i = 0; i < t->n; i++) {
        float *sums = SUM(t->sums, i, 0);

        if (n_vectors == TILE_VECTORS && last == LANES)
            add_columns_of(w, n, t->rows[i], n_terms, TILE_VECTORS, LANES, sums);
        else
            for (int v = 0; v < n_vectors; v++)
                add_columns_of(w + v * LANES, n, t->rows[i], n_terms, 1,
                               v < n_vectors - 1 ? LANES : last, sums + v * LANES);
    }
}
