/*
 * implicit_blocks_tpl.h - sums of a few results at neighbouring places. The includer
 * defines what implicit_tpl.h lists.
 */
#include "ops/conv/implicit/implicit.h"

#include <math.h>

enum {
    AHEAD = 6, /* channels that are fetched before they are needed */
};

/* Sums of some rows, at some places, over some channels and all taps of a class. */
typedef struct products {
    const float *source, *weight;
    int64_t plane, row_step, channel_step;
    int n_channels, n_taps;
    const ptac_implicit_tap *taps;
    int n_last; /* places in the last vector */
    /* The sums begin with 0 or with those so far. The last ones are finished: */
    bool is_first, is_last, is_bounded;
    const float *scale, *shift; /* of the rows, or NULL */
    float least, most;
    float *sums;
    int64_t sums_step; /* between rows */
} products;

INLINE int at_most(int64_t most, int64_t n)
{
    return (int)(n < most ? n : most);
}

INLINE vec bounded(const products *p, vec sum)
{
    return v_min(v_set(p->most), v_max(v_set(p->least), sum));
}

/* For each sum of a block: i is its row, n the places from at on; then what to do. */
#define FOR_SUMS(...)                                                                  \
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)                             \
    {                                                                                  \
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)                      \
        {                                                                              \
            float *at = p->sums + i * p->sums_step + j * LANES;                        \
            const int n = j < vectors - 1 ? LANES : p->n_last;                         \
                                                                                       \
            (void)at;                                                                  \
            (void)n;                                                                   \
            __VA_ARGS__;                                                               \
        }                                                                              \
    }

/* A branch for all sums, and not for each. */
INLINE void give_sums(int rows, int vectors, const products *p, vec sums[8][4])
{
    if (!p->is_first)
        FOR_SUMS(sums[i][j] = v_add(v_load_first(at, n), sums[i][j]))
    if (p->is_last && p->scale && p->shift)
        FOR_SUMS(sums[i][j] = v_fma(sums[i][j], v_set(p->scale[i]), v_set(p->shift[i])))
    else if (p->is_last && p->scale)
        FOR_SUMS(sums[i][j] = v_mul(sums[i][j], v_set(p->scale[i])))
    else if (p->is_last && p->shift)
        FOR_SUMS(sums[i][j] = v_add(sums[i][j], v_set(p->shift[i])))
    if (p->is_last && p->is_bounded && p->most < INFINITY)
        FOR_SUMS(sums[i][j] = bounded(p, sums[i][j]))
    else if (p->is_last && p->is_bounded)
        FOR_SUMS(sums[i][j] = v_max(v_set(p->least), sums[i][j]))
    FOR_SUMS(v_store_first(at, sums[i][j], n))
}

INLINE void multiply_block(int rows, int vectors, const products *p)
{
    const float *source = p->source, *weight = p->weight;
    const int64_t row_step = p->row_step, plane = p->plane;
    const int last = vectors - 1;
    vec sums[8][4];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sums[i][j] = v_zero();
    for (int c = 0; c < p->n_channels; c++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            __builtin_prefetch(source + AHEAD * plane + j * LANES);
        for (int t = 0; t < p->n_taps; t++) {
            const float *from = source + p->taps[t].at;
            const float *by = weight + p->taps[t].weight;
            vec values[4];

#pragma GCC unroll 4
            for (int j = 0; j < last; j++)
                values[j] = v_load(from + j * LANES);
            values[last] = v_load_first(from + last * LANES, p->n_last);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const vec factor = v_set(by[i * row_step]);

#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++)
                    sums[i][j] = v_fma(factor, values[j], sums[i][j]);
            }
        }
        source += plane;
        weight += p->channel_step;
    }
    give_sums(rows, vectors, p, sums);
}

#define DEFINE_BLOCK(rows, vectors)                                                    \
    TARGET static                                                                      \
        __attribute__((noinline)) void block_##rows##x##vectors(const products *p)     \
    {                                                                                  \
        multiply_block(rows, vectors, p);                                              \
    }
#define DEFINE_FOUR_ROWS(vectors)                                                      \
    DEFINE_BLOCK(1, vectors)                                                           \
    DEFINE_BLOCK(2, vectors)                                                           \
    DEFINE_BLOCK(3, vectors)                                                           \
    DEFINE_BLOCK(4, vectors)
#define FOUR_ROWS(vectors)                                                             \
    block_1x##vectors, block_2x##vectors, block_3x##vectors, block_4x##vectors

DEFINE_FOUR_ROWS(1)
DEFINE_FOUR_ROWS(2)
DEFINE_FOUR_ROWS(3)
#if ROWS_OF_FEW > 4
DEFINE_BLOCK(5, 1)
DEFINE_BLOCK(6, 1)
DEFINE_BLOCK(7, 1)
DEFINE_BLOCK(8, 1)
DEFINE_BLOCK(5, 2)
DEFINE_BLOCK(6, 2)
DEFINE_BLOCK(7, 2)
DEFINE_BLOCK(8, 2)
DEFINE_BLOCK(5, 3)
DEFINE_BLOCK(6, 3)
DEFINE_BLOCK(7, 3)
DEFINE_BLOCK(8, 3)
#define EIGHT_ROWS(vectors)                                                            \
    FOUR_ROWS(vectors), block_5x##vectors, block_6x##vectors, block_7x##vectors,       \
        block_8x##vectors
#else
#define EIGHT_ROWS FOUR_ROWS
#endif
#if ROWS_OF_FOUR
DEFINE_FOUR_ROWS(4)
DEFINE_BLOCK(5, 4)
DEFINE_BLOCK(6, 4)
#endif

typedef void (*block_fn)(const products *p);

/* By vectors and rows, from 1 on. */
static const block_fn block_of[][8] = {
    {EIGHT_ROWS(1)},
    {EIGHT_ROWS(2)},
    {EIGHT_ROWS(3)},
#if ROWS_OF_FOUR
    {FOUR_ROWS(4), block_5x4, block_6x4},
#endif
};
