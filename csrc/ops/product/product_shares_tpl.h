/*
 * product_shares_tpl.h - a result cut into rectangles of tiles and panels, for threads,
 * and sums into parts, for the caches.
 */
#include "core/host.h"
#include "ops/product/product_layout_tpl.h"

enum {
    PACKED_TERMS = 256, /* of a panel, which the first cache holds */
    PACKED_TILES = PRODUCT_REGISTERS == 32 ? 36 : 56, /* with these, the second one */
    PACKED_COPY = 13, /* multiply-adds in the time that laying out a float takes */
};

/* m rows as n tiles, which have as many as each other, or one more. */
INLINE tile_rows tile_of(int64_t m, int64_t n, int64_t tile)
{
    const int64_t first = tile * m / n;

    return (tile_rows){first, (int)((tile + 1) * m / n - first)};
}

/* y cut into n_down times n_across rectangles of whole tiles, or as good as. */
typedef struct packed_shares {
    const ptac_product *product;
    int64_t n_down, n_across;
    int64_t most_rows, most_columns; /* of one */
    float *scratch;                  /* most_held for each */
    int64_t most_held;
} packed_shares;

static packed_shares shares_of(const ptac_product *p, int64_t n_down, int64_t n_across)
{
    const int64_t n_tiles = ptac_parts(p->m, TILE_ROWS);
    const int64_t n_panels = ptac_parts(p->n, TILE_COLUMNS);

    return (packed_shares){
        .product = p,
        .n_down = n_down,
        .n_across = n_across,
        .most_rows = ptac_parts(n_tiles, n_down) * TILE_ROWS,
        .most_columns = ptac_parts(n_panels, n_across) * TILE_COLUMNS,
    };
}

/* Of a term, in multiply-adds: products, and what is laid out. */
static int64_t cost_of(const packed_shares *s)
{
    return s->most_rows * s->most_columns +
           PACKED_COPY * (s->most_rows + s->most_columns);
}

/* As many as threads are worth it, cut as it costs least. */
static packed_shares best_shares(const ptac_product *p)
{
    const int64_t n_worth = p->m * p->n * p->k / PTAC_PRODUCT_WORK;
    const int64_t n = ptac_least(ptac_the_host.n_threads(), n_worth);
    packed_shares best = shares_of(p, 1, 1);

    for (int64_t i = 1; i <= n; i++) {
        const packed_shares s = shares_of(p, i, n / i);

        if (cost_of(&s) < cost_of(&best))
            best = s;
    }
    return best;
}

/* Rows [first, end) of most_rows each, likewise columns: what a share has of them. */
INLINE int64_t begin_of(int64_t i, int64_t most, int64_t n)
{
    return ptac_least(i * most, n);
}
