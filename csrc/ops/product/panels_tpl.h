/*
 * panels_tpl.h - rows of weights, where they lie, times columns.
 *
 * Lanes are neighbouring places. A panel of up to PANEL_VECTORS vectors of them, with
 * some terms, is laid out for the first cache; blocks of rows pass by, whose weights
 * come one by one to all lanes from where they lie. The block behind is fetched
 * meanwhile. Up to PTAC_MOST_ODD places that are left over are sums over lanes of terms
 * instead: of an image of 7x7 a fourth vector would hold a single place.
 *
 * The includer defines, besides lanes, PRODUCT_REGISTERS, how many vectors fit into
 * registers, and PANELS_WAY.
 */
#include "core/host.h"
#include "ops/math/turned_tpl.h"
#include "ops/product/panels.h"
#include "ops/product/panels_block_tpl.h"

enum {
    PANEL = PANEL_VECTORS * LANES,
    PANEL_TERMS = 192,    /* at once, of which the first cache holds a panel */
    ODD_TERMS = 1024,     /* at once, where there are no other places */
    HELD_ROWS = 512,      /* whose weights of a panel's terms the second cache holds */
    SHARE_ROWS = 64,      /* at least, or threads share panels */
    SHARE_WORK = 1 << 18, /* multiply-adds that are worth a thread */
};

/* Places from first on: whole vectors but for the last one, and odd ones behind it. */
typedef struct panel {
    _Alignas(64) float places[PANEL_TERMS * PANEL];    /* [terms, vectors] */
    _Alignas(64) float odd[PTAC_MOST_ODD * ODD_TERMS]; /* [places, terms] */
    int64_t begin, end;                                /* these terms */
    int64_t first;
    int n_vectors, n_last, n_odd;
} panel;

/* Some rows of a panel's sums. */
typedef struct block {
    const ptac_panels *product;
    const panel *panel;
    int64_t row;
    const float *weight, *next; /* of the panel's terms; of those that come next */
} block;

INLINE int64_t cut(int64_t n, int64_t i, int64_t n_parts)
{
    return n * i / n_parts;
}

/* Of places that are not odd. */
INLINE int64_t vectors_of(const ptac_panels *l)
{
    const int64_t rest = l->n_places % LANES;

    return l->n_places / LANES + (rest > l->most_odd);
}

INLINE int64_t panels_of(const ptac_panels *l)
{
    const int64_t n = ptac_parts(vectors_of(l), PANEL_VECTORS);

    return n > 0 ? n : 1;
}

/* Each has as many vectors as others, or one more; the last one has the odd places. */
INLINE void place_panel(const ptac_panels *l, int64_t i, panel *p)
{
    const int64_t n_panels = panels_of(l), n_vectors = vectors_of(l);
    const int64_t first = cut(n_vectors, i, n_panels);
    const int64_t last = cut(n_vectors, i + 1, n_panels);
    const int64_t left = l->n_places - last * LANES;

    p->first = first * LANES;
    p->n_vectors = (int)(last - first);
    p->n_last = left < 0 ? (int)(left + LANES) : LANES;
    p->n_odd = i + 1 == n_panels && left > 0 ? (int)left : 0;
}

INLINE void lay_out(const ptac_panels *l, panel *p)
{
    const int whole = p->n_vectors - (p->n_last < LANES);
    const float *from = l->columns + p->begin * l->n_places + p->first;
    float *to = p->places;

    for (int64_t k = p->begin; k < p->end; k++, from += l->n_places) {
        const float *odd = from + p->n_vectors * LANES;

        for (int i = 0; i < whole; i++, to += LANES)
            v_store(to, v_load(from + i * LANES));
        if (whole < p->n_vectors) {
            v_store(to, v_load_first(from + whole * LANES, p->n_last));
            to += LANES;
        }
        for (int i = 0; i < p->n_odd; i++)
            p->odd[i * ODD_TERMS + k - p->begin] = odd[i];
    }
}

/* A sum of row i of a block: scaled, shifted, bounded; NaN stays. */
INLINE vec finished(const block *b, int i, vec sum)
{
    const ptac_panels *l = b->product;

    if (l->scale)
        sum = v_mul(sum, v_set(l->scale[b->row + i]));
    if (l->shift)
        sum = v_add(sum, v_set(l->shift[b->row + i]));
    return v_min(v_set(l->most), v_max(v_set(l->least), sum));
}

/* n sums of row i to those at y, by whether the panel has the first and last terms. */
INLINE void give(const block *b, int i, bool are_first, bool are_last, vec sum,
                 float *y, int n)
{
    if (!are_first)
        sum = v_add(v_load_first(y, n), sum);
    if (are_last)
        sum = finished(b, i, sum);
    v_store_first(y, sum, n);
}

INLINE float *result_of(const block *b, int i)
{
    return b->product->y + (b->row + i) * b->product->n_places + b->panel->first;
}

/* A function by whether terms are the first and the last, in each case as constants. */
#define BY_TERMS(function, ...)                                                        \
    do {                                                                               \
        const bool are_first = b->panel->begin == 0;                                   \
        const bool are_last = b->panel->end == b->product->n_terms;                    \
                                                                                       \
        if (are_first && are_last)                                                     \
            function(__VA_ARGS__, true, true);                                         \
        else if (are_first)                                                            \
            function(__VA_ARGS__, true, false);                                        \
        else if (are_last)                                                             \
            function(__VA_ARGS__, false, true);                                        \
        else                                                                           \
            function(__VA_ARGS__, false, false);                                       \
    } while (0)

/* Sums [rows, vectors]. */
INLINE void give_vectors(int rows, const block *b, const float *sums, bool are_first,
                         bool are_last)
{
    const int n_vectors = b->panel->n_vectors, n_last = b->panel->n_last;
    const int64_t row = b->product->n_places;
    float *y = result_of(b, 0);

    for (int i = 0; i < rows; i++, y += row) {
        for (int j = 0; j < n_vectors - 1; j++, sums += LANES)
            give(b, i, are_first, are_last, v_load(sums), y + j * LANES, LANES);
        give(b, i, are_first, are_last, v_load(sums), y + (n_vectors - 1) * LANES,
             n_last);
        sums += LANES;
    }
}

/* Whole blocks: */

INLINE void sum_vectors(const block *b)
{
    const panel *p = b->panel;
    _Alignas(64) float sums[BLOCK_ROWS * PANEL];

    sum_blocks[p->n_vectors](&(block_place){
        .weight = b->weight,
        .next = b->next,
        .row = b->product->weight_row,
        .panel = p->places,
        .n_terms = p->end - p->begin,
        .sums = sums,
    });
    BY_TERMS(give_vectors, BLOCK_ROWS, b, sums);
}

/* A row that is left over. */
INLINE void sum_vectors_of_row(const block *b)
{
    const panel *p = b->panel;
    vec sums[PANEL_VECTORS] = {v_zero(), v_zero(), v_zero()};
    _Alignas(64) float to[PANEL];
    const float *places = p->places;

    for (int64_t k = 0; k < p->end - p->begin; k++)
        for (int j = 0; j < p->n_vectors; j++, places += LANES)
            sums[j] = v_fma(v_set(b->weight[k]), v_load(places), sums[j]);
    for (int j = 0; j < p->n_vectors; j++)
        v_store(to + j * LANES, sums[j]);
    BY_TERMS(give_vectors, 1, b, to);
}

/* Of either: */

INLINE void give_odd(int rows, const block *b, int odd, const vec *sums, bool are_first,
                     bool are_last)
{
    const int64_t row = b->product->n_places;
    float *y = result_of(b, 0) + b->panel->n_vectors * LANES + odd;

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++, y += row)
        give(b, i, are_first, are_last, v_set(v_sum(sums[i])), y, 1);
}

/* One place: terms are in lanes. */
INLINE void sum_odd(int rows, const block *b, int odd)
{
    const panel *p = b->panel;
    const float *terms = p->odd + odd * ODD_TERMS, *weight = b->weight;
    const int64_t row = b->product->weight_row;
    vec sums[BLOCK_ROWS];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        sums[i] = v_zero();
    FOR_LANES(k, count, 0, p->end - p->begin, {
        const vec x = v_load_first(terms + k, count);

        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) sums[i] =
            v_fma(v_load_first(weight + i * row + k, count), x, sums[i]);
    });
    BY_TERMS(give_odd, rows, b, odd, sums);
}

INLINE void sum_odds(int rows, const block *b)
{
    for (int odd = 0; odd < b->panel->n_odd; odd++)
        sum_odd(rows, b, odd);
}

TARGET static __attribute__((noinline)) void sum_whole_block(const block *b)
{
    if (b->panel->n_vectors > 0)
        sum_vectors(b);
    sum_odds(BLOCK_ROWS, b);
}

TARGET static __attribute__((noinline)) void sum_one_row(const block *b)
{
    if (b->panel->n_vectors > 0)
        sum_vectors_of_row(b);
    sum_odds(1, b);
}

/* Rows [first, last) of a panel whose terms are laid out. */
INLINE void sum_rows(const ptac_panels *l, const panel *p, int64_t first, int64_t last)
{
    block b = {.product = l, .panel = p, .row = first};

    while (b.row < last) {
        const bool is_whole = last - b.row >= BLOCK_ROWS;
        const int64_t n = is_whole ? BLOCK_ROWS : 1;

        b.weight = l->weight + b.row * l->weight_row + p->begin;
        b.next = b.row + n < last ? b.weight + n * l->weight_row
                                  : l->weight + first * l->weight_row + p->end;
        if (is_whole)
            sum_whole_block(&b);
        else
            sum_one_row(&b);
        b.row += n;
    }
}

/* Rows and panels, cut for threads. */
typedef struct shares {
    const ptac_panels *product;
    int64_t n_down, n_across;
} shares;

/* Rows [first, last) of panels [first_panel, last_panel). */
INLINE void multiply_rows(const ptac_panels *l, int64_t first, int64_t last,
                          int64_t first_panel, int64_t last_panel)
{
    const int64_t at_once = l->n_places > l->most_odd ? PANEL_TERMS : ODD_TERMS;
    const int64_t n_times = ptac_parts(l->n_terms, at_once);
    panel p;

    for (int64_t t = 0; t < n_times; t++) {
        p.begin = cut(l->n_terms, t, n_times);
        p.end = cut(l->n_terms, t + 1, n_times);
        for (int64_t j = first_panel; j < last_panel; j++) {
            place_panel(l, j, &p);
            lay_out(l, &p);
            sum_rows(l, &p, first, last);
        }
    }
}

/* Some rows after the others, whose weights the second cache holds for all panels. */
TARGET static void multiply_share(const shares *s, int64_t i)
{
    const ptac_panels *l = s->product;
    const int64_t down = i / s->n_across, across = i % s->n_across;
    const int64_t n_blocks = ptac_parts(l->n_rows, BLOCK_ROWS);
    const int64_t first = cut(n_blocks, down, s->n_down) * BLOCK_ROWS;
    const int64_t end = cut(n_blocks, down + 1, s->n_down) * BLOCK_ROWS;
    const int64_t n_panels = panels_of(l);
    const int64_t first_panel = cut(n_panels, across, s->n_across);
    const int64_t last_panel = cut(n_panels, across + 1, s->n_across);
    const int64_t at_once = last_panel - first_panel > 1 ? HELD_ROWS : l->n_rows;

    for (int64_t row = first; row < end; row += at_once)
        multiply_rows(l, row, ptac_least(ptac_least(row + at_once, end), l->n_rows),
                      first_panel, last_panel);
}

static void multiply_some(int64_t begin, int64_t end, void *context)
{
    for (int64_t i = begin; i < end; i++)
        multiply_share(context, i);
}

TARGET static void multiply(const ptac_panels *l)
{
    const int64_t n_worth = l->n_rows * l->n_places * l->n_terms / SHARE_WORK;
    const int64_t n = ptac_least(ptac_the_host.n_threads(), n_worth > 0 ? n_worth : 1);
    shares s = {l, 1, 1};

    if (l->n_rows >= n * SHARE_ROWS || panels_of(l) < n)
        s.n_down = n;
    else
        s.n_across = n;
    ptac_parallel_for(0, n, 1, multiply_some, &s);
}

TARGET static void turn(const ptac_turned *t)
{
    for (int64_t row = 0; row < t->n_rows; row += LANES) {
        const int n_rows = at_most_lanes(t->n_rows - row);

        FOR_LANES(column, count, 0, t->n_columns, {
            vec turned[LANES];

            load_turned(t->from + row * t->from_row + column, t->from_row, n_rows,
                        count, turned);
            for (int i = 0; i < count; i++)
                v_store_first(t->to + (column + i) * t->to_row + row, turned[i],
                              n_rows);
        });
    }
}

const ptac_panels_way PANELS_WAY = {multiply, turn};
