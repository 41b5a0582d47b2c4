/*
 * attention_tile_tpl.h - small products, whose lanes are neighbouring columns.
 *
 *   out[r][c] (+)= sum over t of b(r, t) * a[t][c]
 *
 * a lies term by term, as many vectors wide as a group has; b is read one number at a
 * time where it lies, so that nothing but a has to be laid out. Scores have b = keys
 * and a = queries, columns; results b = values, turned, and a = weights; gradients of
 * keys and values b = weights and a = queries.
 *
 * The includer defines, besides lanes:
 *
 *   TILE_ROWS    int, 4 or 8: rows that are summed at once, each by TILE_VECTORS
 *                vectors, which together fit into registers
 */
#include <stdint.h>

enum {
    TILE_VECTORS = 3, /* at most, of a group */
    TILE_TERMS = 64,  /* of a sum: longer ones err more than sums of such sums */
};

/* Strides of b by row and term; one of them is 1. */
typedef struct tile {
    const float *a, *b;
    int64_t a_term, b_row, b_term;
    float *out;
    int64_t out_row;
    int64_t n_terms;
    bool adds; /* to what is in out */
} tile;

/* n_rows and n_vectors are constants; terms_are_near: b_term is 1, else b_row is. */
INLINE void tile_of(const tile *t, int n_rows, int n_vectors, bool terms_are_near)
{
    const int64_t row = terms_are_near ? t->b_row : 1;
    const int64_t term = terms_are_near ? 1 : t->b_term;
    const float *a = t->a, *b = t->b;
    vec sums[TILE_ROWS][TILE_VECTORS];

#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < n_vectors; i++)
            sums[r][i] = v_zero();
    for (int64_t k = 0; k < t->n_terms; k++, a += t->a_term, b += term) {
        vec columns[TILE_VECTORS];

#pragma GCC unroll 3
        for (int i = 0; i < n_vectors; i++)
            columns[i] = v_load(a + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            const vec one = v_set(b[r * row]);

#pragma GCC unroll 3
            for (int i = 0; i < n_vectors; i++)
                sums[r][i] = v_fma(one, columns[i], sums[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < n_vectors; i++) {
            float *out = t->out + r * t->out_row + i * LANES;

            v_store(out, t->adds ? v_add(v_load(out), sums[r][i]) : sums[r][i]);
        }
}

typedef void (*tile_fn)(const tile *t);

#define TILE(rows, vectors)                                                            \
    TARGET static void tile_near_##rows##_##vectors(const tile *t)                     \
    {                                                                                  \
        tile_of(t, rows, vectors, true);                                               \
    }                                                                                  \
    TARGET static void tile_far_##rows##_##vectors(const tile *t)                      \
    {                                                                                  \
        tile_of(t, rows, vectors, false);                                              \
    }
#define TILES(rows)                                                                    \
    TILE(rows, 1)                                                                      \
    TILE(rows, 2)                                                                      \
    TILE(rows, 3)
#define TILE_NAMES(rows)                                                               \
    {                                                                                  \
        {tile_far_##rows##_1, tile_far_##rows##_2, tile_far_##rows##_3},               \
        {                                                                              \
            tile_near_##rows##_1, tile_near_##rows##_2, tile_near_##rows##_3           \
        }                                                                              \
    }

TILES(1)
TILES(2)
TILES(4)
#if TILE_ROWS == 8
TILES(8)
#endif

/* By the power of two of rows, whether terms are near, and vectors less one. */
static const tile_fn tiles[][2][TILE_VECTORS] = {
    TILE_NAMES(1),
    TILE_NAMES(2),
    TILE_NAMES(4),
#if TILE_ROWS == 8
    TILE_NAMES(8),
#endif
};

/* All rows of some terms. */
INLINE void multiply_terms(tile t, int64_t n_rows, int n_vectors)
{
    const int near = t.b_term == 1;

    for (int power = TILE_ROWS == 8 ? 3 : 2; power >= 0; power--) {
        const int64_t rows = 1 << power;
        const tile_fn compute = tiles[power][near][n_vectors - 1];

        for (; n_rows >= rows; n_rows -= rows) {
            compute(&t);
            t.b += rows * t.b_row;
            t.out += rows * t.out_row;
        }
    }
}

/* A product that has one group of columns. */
TARGET static void multiply(tile t, int64_t n_rows, int n_vectors)
{
    const int64_t n_terms = t.n_terms, parts = ptac_parts(n_terms, TILE_TERMS);

    for (int64_t i = 0; i < parts; i++) {
        t.n_terms = (i + 1) * n_terms / parts - i * n_terms / parts;
        multiply_terms(t, n_rows, n_vectors);
        t.a += t.n_terms * t.a_term;
        t.b += t.n_terms * t.b_term;
        t.adds = true;
    }
}
